// SPDX-License-Identifier: Apache-2.0

package output_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/output"
)

func TestAValueIsWrittenInTheChosenFormat(t *testing.T) {
	value := map[string]any{"name": "blue", "mbit": 100}
	for chosen, want := range map[string]string{
		"json": "{\n  \"mbit\": 100,\n  \"name\": \"blue\"\n}\n",
		"yaml": "mbit: 100\nname: blue\n",
	} {
		var format output.Format
		require.NoError(t, format.Set(chosen))
		require.Equal(t, chosen, format.String())
		var text strings.Builder
		require.NoError(t, format.Write(&text, value))
		require.Equal(t, want, text.String())
	}
}

func TestAnUnknownFormatIsRefused(t *testing.T) {
	format := output.JSON
	require.ErrorContains(t, format.Set("xml"), "json or yaml")
	require.Equal(t, output.JSON, format, "the earlier choice stays")
}

func TestWhatCannotBeWrittenIsAnError(t *testing.T) {
	for _, format := range []output.Format{output.JSON, output.YAML} {
		require.Error(t, format.Write(&strings.Builder{}, make(chan int)))
	}
}

// Values that follow each other, as of a command that goes on, are told apart by whoever reads.
func TestValuesInARowAreALineOrADocumentEach(t *testing.T) {
	for format, want := range map[output.Format]string{
		output.JSON: "{\"path\":\"blue\"}\n{\"path\":\"green\"}\n",
		output.YAML: "---\npath: blue\n---\npath: green\n",
	} {
		var text strings.Builder
		for _, path := range []string{"blue", "green"} {
			require.NoError(t, format.WriteNext(&text, map[string]string{"path": path}))
		}
		require.Equal(t, want, text.String())
	}
}

func TestATimeHasThreeDigitsOrSo(t *testing.T) {
	for want, of := range map[string]time.Duration{
		"-": 0, "280us": 280 * time.Microsecond, "1.5ms": 1500 * time.Microsecond, "99.9ms": 99_900 * time.Microsecond,
		"100ms": 100 * time.Millisecond, "9999ms": 9999 * time.Millisecond, "10s": 10 * time.Second,
	} {
		require.Equal(t, want, output.Duration(of))
	}
	require.Equal(t, "-", output.Duration(-time.Second), "one that is not known")
}
