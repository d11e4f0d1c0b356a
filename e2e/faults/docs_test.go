// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestThePageListsTheFaults(t *testing.T) {
	text, err := os.ReadFile("../../docs/troubleshooting.md")
	require.NoError(t, err)
	_, listed, found := strings.Cut(string(text), "\n## What goes wrong, and who tells it\n")
	require.True(t, found)
	listed, _, _ = strings.Cut(listed, "\n## ")
	listed = listed[strings.Index(listed, "|---|---|---|\n"):]
	listed, _, _ = strings.Cut(strings.TrimSpace(listed), "\n\n")
	var table strings.Builder
	table.WriteString("|---|---|---|\n")
	for _, group := range groups {
		for i := range group.faults {
			table.WriteString(group.faults[i].row())
		}
	}
	require.Equal(t, table.String(), listed+"\n")
}

// row is that of the page.
func (f *fault) row() string {
	var by []string
	for _, channel := range channels {
		switch pattern := f.told[channel]; {
		case pattern == "":
		case channel == byAlert:
			name, _, _ := strings.Cut(pattern, " ")
			by = append(by, fmt.Sprintf("[%s](alerts.md#%s)", name, strings.ToLower(name)))
		default:
			by = append(by, string(channel))
		}
	}
	return fmt.Sprintf("| %s | %s | %s |\n", f.name, strings.Join(by, ", "), f.do)
}

func TestEveryFaultIsToldByEnoughChannels(t *testing.T) {
	names := map[string]bool{}
	for _, group := range groups {
		for i := range group.faults {
			f := &group.faults[i]
			require.False(t, names[f.name], f.name)
			require.GreaterOrEqual(t, len(f.told), least, f.name)
			require.NotEmpty(t, f.remedy, f.name)
			require.NotEmpty(t, f.do, f.name)
			for by := range f.told {
				require.True(t, slices.Contains(channels, by), f.name)
			}
			names[f.name] = true
		}
	}
}
