// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDirectoriesThatNothingIsInAreRemoved(t *testing.T) {
	options := Options{PinPath: filepath.Join(t.TempDir(), "braid"), StatePath: t.TempDir()}
	require.NoError(t, removeEmpty(options)) // none was made
	require.NoError(t, errors.Join(os.Mkdir(options.PinPath, 0o700), os.Mkdir(podStates(options), 0o700)))
	record := filepath.Join(podStates(options), "1.json")
	require.NoError(t, os.WriteFile(record, nil, 0o600))
	require.NoError(t, removeEmpty(options))
	if _, err := os.Stat(record); err != nil {
		t.Errorf("a pod's state is gone: %v", err)
	}
	if _, err := os.Stat(options.PinPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty directory of pins: %v", err)
	}
	require.NoError(t, os.Remove(record))
	require.NoError(t, removeEmpty(options))
	if _, err := os.Stat(podStates(options)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty directory of states: %v", err)
	}
}
