// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheDocumentationListsTheAttempts(t *testing.T) {
	text, err := os.ReadFile("../../docs/isolation.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "## On a whole cluster\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var listed, made []string
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, " | "); len(cells) == 3 && !strings.HasPrefix(line, "| attempt") {
			listed = append(listed, strings.TrimPrefix(cells[0], "| "))
		}
	}
	for _, a := range attempts {
		made = append(made, a.name)
	}
	slices.Sort(listed)
	slices.Sort(made)
	require.Equal(t, made, listed)
}
