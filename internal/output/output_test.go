// SPDX-License-Identifier: Apache-2.0

package output_test

import (
	"strings"
	"testing"

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
