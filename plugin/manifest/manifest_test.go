// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"braid.dev/braid/plugin/manifest"
)

const given = "../../api/v1alpha1/testdata/"

func check(t *testing.T, files ...string) *manifest.Report {
	t.Helper()
	documents, err := manifest.Read(files, strings.NewReader(""))
	if err != nil {
		t.Fatal(err)
	}
	report, err := manifest.Check(t.Context(), documents, "default")
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// refusals are what the API server would say of each file.
func refusals(report *manifest.Report) map[string]string {
	texts := map[string]string{}
	for _, finding := range report.Findings {
		if finding.Refused {
			texts[finding.File] += finding.Field + ": " + finding.Message + "\n"
		}
	}
	return texts
}

func filesOf(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file matches %s: %v", pattern, err)
	}
	return files
}

func TestWhatTheAPIServerAcceptsIsAccepted(t *testing.T) {
	for _, pattern := range []string{given + "valid/*.yaml", "../../config/samples/braid_*.yaml"} {
		files := filesOf(t, pattern)
		for file, text := range refusals(check(t, files...)) {
			t.Errorf("%s is refused:\n%s", file, text)
		}
	}
}

func TestTheSamplesTogetherGiveNoWarning(t *testing.T) {
	for _, finding := range check(t, filesOf(t, "../../config/samples/braid_*.yaml")...).Findings {
		t.Errorf("%+v", finding)
	}
}

var (
	example     = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```")
	ofBraid     = regexp.MustCompile(`(?m)^apiVersion: braid\.dev/`)
	threePlanes = []string{
		ours("MPTCPPath", "{name: blue}", "{interfaces: [eth1], capacity: 10G}"),
		ours("MPTCPPath", "{name: green}", "{interfaces: [eth2], capacity: 10G}"), ours("MPTCPPath", "{name: red}", "{interfaces: [eth3], capacity: 10G}"),
	}
)

// A reader copies them: where there are paths of the names that the pages use, each is
// accepted, and says nothing that has no effect.
func TestTheExamplesOfThePagesGiveNoWarning(t *testing.T) {
	seen := 0
	for _, page := range append(filesOf(t, "../../docs/*.md"), "../../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range example.FindAllStringSubmatch(string(text), -1) {
			if !ofBraid.MatchString(found[1]) {
				continue
			}
			seen++
			manifests := found[1]
			if !strings.Contains(manifests, "kind: MPTCPPath\n") {
				manifests += "---\n" + strings.Join(threePlanes, "\n---\n")
			}
			file := filepath.Join(t.TempDir(), "example.yaml")
			if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, finding := range check(t, file).Findings {
				t.Errorf("%s: %+v in\n%s", page, finding, found[1])
			}
		}
	}
	if seen < 10 {
		t.Errorf("only %d examples were found: look for them otherwise", seen)
	}
}

var refusedLine = regexp.MustCompile(`(?m)^# refused: (.*)$`)

// The API server is asked for the same lines in api/v1alpha1.
func TestWhatTheAPIServerRefusesIsRefusedInItsWords(t *testing.T) {
	files := filesOf(t, given+"invalid/*.yaml")
	refused := refusals(check(t, files...))
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		wanted := refusedLine.FindAllStringSubmatch(string(content), -1)
		if len(wanted) == 0 || refused[file] == "" {
			t.Errorf("%s is not refused", file)
		}
		for _, want := range wanted {
			if !strings.Contains(refused[file], want[1]) {
				t.Errorf("%s: no refusal contains %q:\n%s", file, want[1], refused[file])
			}
		}
	}
}
