// SPDX-License-Identifier: Apache-2.0

package build_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// CI runs the tests in parts, and hack/packages.sh divides the packages among these.
func TestCIRunsTheTestsOfEachPackageOnce(t *testing.T) {
	lines := func(name string, arguments ...string) []string {
		command := exec.CommandContext(t.Context(), name, arguments...)
		command.Dir = ".."
		command.Stderr = os.Stderr
		out, err := command.Output()
		require.NoError(t, err)
		return strings.Fields(string(out))
	}
	run, err := os.ReadFile(filepath.Join("..", ".ci", "run"))
	require.NoError(t, err)
	var divided []string
	for _, part := range []string{"beside", "cluster", "waiting", "light", "network", "alone"} {
		packages := lines("hack/packages.sh", part, "./...")
		require.NotEmpty(t, packages, part)
		require.Regexp(t, `(?m)^(steps|beside) .*\btest-`+part+`\b`, string(run))
		divided = append(divided, packages...)
	}
	all := lines("go", "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	slices.Sort(all)
	slices.Sort(divided)
	require.Equal(t, all, divided)
}
