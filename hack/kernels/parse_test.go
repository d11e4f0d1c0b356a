// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"braid.dev/braid/hack/kernels/job"
)

// parse gives a guest's output to a parser.
func parse(t *testing.T, file string) result {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	p := newParser("bookworm")
	for line := range strings.Lines(strings.ReplaceAll(string(content), "^V", "\x16")) {
		p.line(strings.TrimSuffix(line, "\n"))
	}
	return p.result
}

func TestOutcomesAndReasonsAreRead(t *testing.T) {
	r := parse(t, "guest.log")
	for _, test := range []struct {
		run  string
		want []tested
	}{
		{"Steering", []tested{
			{name: "TestGood", outcome: passed},
			{name: "TestGroup", outcome: failed},
			{name: "TestGroup/one", outcome: passed},
			{name: "TestGroup/two", outcome: failed, output: []string{"group_test.go:7: two is not there"}},
			{name: "TestLacking", outcome: skipped, output: []string{"group_test.go:9: this kernel has no VLANs"}},
		}},
		{"Pacing", []tested{
			{name: "TestQuick", outcome: passed},
			{name: "TestHanging", outcome: late, output: []string{"panic: test timed out after 1m0s"}},
		}},
		{"Crash", []tested{{name: "TestCrashing", outcome: failed, output: []string{"panic: nil map"}}}},
	} {
		same := func(got *tested, want tested) bool {
			return got.name == want.name && got.outcome == want.outcome && slices.Equal(got.output, want.output)
		}
		if got := r.runs[test.run].tests; !slices.EqualFunc(got, test.want, same) {
			t.Errorf("%s: there are %d tests instead of %+v", test.run, len(got), test.want)
			for _, g := range got {
				t.Logf("%+v", *g)
			}
		}
	}
}

func TestOnlyWhatTheLastKernelSaidIsRead(t *testing.T) {
	r := parse(t, "guest.log")
	if r.release != "6.1.0-50-amd64" || r.accelerator != "tcg" || r.runs["Of another kernel"] != nil {
		t.Errorf("of %s, by %s: %v", r.release, r.accelerator, slices.Sorted(maps.Keys(r.runs)))
	}
}

func TestCells(t *testing.T) {
	r := parse(t, "guest.log")
	for name, want := range map[string]string{
		"Steering":          "**no**: 1 of 3 failed",
		"Rules":             "**no**: not without the line above",
		"Pacing":            "not tested to the end (1)",
		"Crash":             "**no**: 1 of 1 failed",
		"Guard":             "not tested: exit status 2",
		"VLANs":             "does not apply",
		"Good":              "yes (2)",
		"None":              "—",
		"Upgrade":           "not tested: the guest stopped",
		"Of another kernel": "not run",
	} {
		if got := cell(capability{name: name}, r); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

func TestATestWithoutTheSubtestsOfItsLineSaysNothing(t *testing.T) {
	r := parse(t, "guest.log")
	for tests, want := range map[string]string{"TestGroup/one": "yes (2)", "TestGroup/one/deeper": "—"} {
		if got := cell(capability{name: "Good", tests: tests}, r); got != want {
			t.Errorf("%s is %q, want %q", tests, got, want)
		}
	}
}

func TestARunIsDoneOnceForTheSameTestsAndKernel(t *testing.T) {
	runs := []job.Run{{Name: "Steering", Hash: "1a2b"}, {Name: "Pacing", Hash: "other"}, {Name: "Upgrade", Hash: "9c0d"}, {Name: "New"}}
	for _, test := range []struct {
		release string
		want    []string
	}{
		{"6.1.0-50-amd64", []string{"Steering"}},
		{"6.1.0-51-amd64", nil},
	} {
		r := parse(t, "guest.log")
		r.keep(test.release, runs)
		if got := slices.Sorted(maps.Keys(r.runs)); !slices.Equal(got, test.want) || r.release != test.release {
			t.Errorf("on %s are kept %v instead of %v", r.release, got, test.want)
		}
	}
}

func TestTheDocument(t *testing.T) {
	lines := []capability{{name: "Steering"}, {name: "Rules"}, {name: "Pacing"}, {name: "Upgrade"}, {name: "Ceilings"}}
	want, err := os.ReadFile("testdata/kernels.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := document(lines, []result{parse(t, "guest.log")}); got != string(want) {
		t.Errorf("the document is\n%s", got)
	}
}

func TestLinesNameTestsThatExist(t *testing.T) {
	names := map[string]bool{}
	for _, c := range capabilities {
		if names[c.name] || c.needs != "" && !names[c.needs] {
			t.Errorf("%q is there twice, or stands before %q", c.name, c.needs)
		}
		names[c.name] = true
		for _, test := range strings.FieldsFunc(c.tests+"|"+c.except, func(r rune) bool { return strings.ContainsRune("|^$()", r) }) {
			top, _, _ := strings.Cut(test, "/")
			if strings.HasPrefix(top, "Test") && !declared(t, c.packageName, top) {
				t.Errorf("%s has no %s", c.packageName, top)
			}
		}
	}
}

// declared tells whether a package has the test.
func declared(t *testing.T, packageName, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", packageName, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(content), "\nfunc "+name+"(t *testing.T)")
	})
}
