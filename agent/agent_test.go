// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestDirectoriesThatNothingIsInAreRemoved(t *testing.T) {
	options := Options{PinPath: filepath.Join(t.TempDir(), "braid"), StatePath: t.TempDir()}
	must(t, removeEmpty(options)) // none was made
	must(t, errors.Join(os.Mkdir(options.PinPath, 0o700), os.Mkdir(podStates(options), 0o700)))
	record := filepath.Join(podStates(options), "1.json")
	must(t, os.WriteFile(record, nil, 0o600))
	must(t, removeEmpty(options))
	if _, err := os.Stat(record); err != nil {
		t.Errorf("a pod's state is gone: %v", err)
	}
	if _, err := os.Stat(options.PinPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty directory of pins: %v", err)
	}
	must(t, os.Remove(record))
	must(t, removeEmpty(options))
	if _, err := os.Stat(podStates(options)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty directory of states: %v", err)
	}
}
