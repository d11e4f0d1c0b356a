// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
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
	want := []tested{
		{packageName: "bpf", name: "TestGood", outcome: passed},
		{packageName: "bpf", name: "TestGroup", outcome: failed},
		{packageName: "bpf", name: "TestGroup/one", outcome: passed},
		{packageName: "bpf", name: "TestGroup/two", outcome: failed, output: []string{"group_test.go:7: two is not there"}},
		{packageName: "bpf", name: "TestLacking", outcome: skipped, output: []string{"group_test.go:9: this kernel has no VLANs"}},
		{packageName: "agent/pace", name: "TestHanging", outcome: failed, output: []string{"panic: test timed out after 1m0s"}},
	}
	if len(r.tests) != len(want) {
		t.Fatalf("there are %d tests, want %d", len(r.tests), len(want))
	}
	for i, test := range r.tests {
		if test.packageName != want[i].packageName || test.name != want[i].name || test.outcome != want[i].outcome ||
			strings.Join(test.output, "\n") != strings.Join(want[i].output, "\n") {
			t.Errorf("test %d is %+v, want %+v", i, *test, want[i])
		}
	}
	if len(r.broken) != 2 || r.broken["agent/guard"] != "exit status 2" || r.broken["agent/sockets"] != "the guest stopped" {
		t.Errorf("broken are %v", r.broken)
	}
}

func TestCells(t *testing.T) {
	r := parse(t, "guest.log")
	for _, test := range []struct {
		c    capability
		want string
	}{
		{capability{packageName: "bpf", tests: "TestGood"}, "yes (1)"},
		{capability{packageName: "bpf", tests: "TestGroup"}, "**no**: 1 of 2 failed"},
		{capability{packageName: "bpf", tests: "TestGroup/^one$"}, "yes (1)"},
		{capability{packageName: "bpf", except: "TestGroup"}, "yes (1)"},
		{capability{packageName: "bpf", tests: "TestLacking"}, "does not apply"},
		{capability{packageName: "bpf", tests: "TestOfAnotherKernel"}, "—"},
		{capability{packageName: "agent/pace", tests: "TestHanging"}, "**no**: 1 of 1 failed"},
		{capability{packageName: "agent/pace", tests: "TestAfterIt"}, "not tested to the end"},
		{capability{packageName: "agent/sockets"}, "not tested: the guest stopped"},
	} {
		if got := cell(test.c, r); got != test.want {
			t.Errorf("%+v is %q, want %q", test.c, got, test.want)
		}
	}
}

func TestTheDocument(t *testing.T) {
	r := parse(t, "guest.log")
	r.release = "6.1.0-50-amd64"
	capabilitiesBefore := capabilities
	t.Cleanup(func() { capabilities = capabilitiesBefore })
	capabilities = []capability{
		{name: "Steering", packageName: "bpf"}, {name: "Pacing", packageName: "agent/pace"},
		{name: "Upgrade", packageName: "agent/sockets"}, {name: "Ceilings", packageName: "bpf", left: true},
	}
	want, err := os.ReadFile("testdata/kernels.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := document([]result{r}, "tcg"); got != string(want) {
		t.Errorf("the document is\n%s", got)
	}
}
