// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"braid.dev/braid/plugin"
	"braid.dev/braid/plugin/manifest"
)

// offline runs a command that needs no cluster.
func offline(t *testing.T, input string, arguments ...string) (string, error) {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	command := plugin.Command(&out, "test")
	command.SetIn(strings.NewReader(input))
	command.SetArgs(append(arguments, "--kubeconfig", empty))
	err := command.ExecuteContext(t.Context())
	return out.String(), err
}

func TestManifestsAreCheckedAloneAndTogether(t *testing.T) {
	out, err := offline(t, "", "validate", "-f", "testdata/validate")
	if !errors.Is(err, plugin.ErrNotFine) {
		t.Errorf("the error is %v", err)
	}
	(&scene{t: t}).golden("validate", out)
}

const bluePath = `{"apiVersion": "braid.dev/v1alpha1", "kind": "MPTCPPath", "metadata": {"name": "blue"}, "spec": {"interfaces": ["ens1"]}}`

func TestAManifestFromTheStandardInputIsCheckedForPrograms(t *testing.T) {
	out, err := offline(t, bluePath, "validate", "-f", "-", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var report manifest.Report
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatal(err)
	}
	if report.Objects != 1 || report.Errors != 0 || len(report.Findings) != 0 {
		t.Errorf("the report is %+v", report)
	}
}

func TestWarningsCountOnlyOnRequest(t *testing.T) {
	misplaced := strings.Replace(bluePath, `"name": "blue"`, `"name": "blue", "namespace": "shop"`, 1)
	if out, err := offline(t, misplaced, "validate", "-f", "-"); err != nil || !strings.Contains(out, "warning: metadata.namespace") {
		t.Errorf("%v:\n%s", err, out)
	}
	if _, err := offline(t, misplaced, "validate", "-f", "-", "--strict"); !errors.Is(err, plugin.ErrNotFine) {
		t.Errorf("strictly the error is %v", err)
	}
}

func TestWhatCannotBeReadIsToldApartFromWhatIsWrong(t *testing.T) {
	for name, test := range map[string]struct{ file, says string }{
		"a file that is not there":     {"testdata/none.yaml", "no such file"},
		"a directory without any file": {t.TempDir(), "has no file that ends in"},
		"nothing at all":               {"", "--filename"},
	} {
		t.Run(name, func(t *testing.T) {
			arguments := []string{"validate"}
			if test.file != "" {
				arguments = append(arguments, "-f", test.file)
			}
			if _, err := offline(t, "", arguments...); err == nil || errors.Is(err, plugin.ErrNotFine) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
