// SPDX-License-Identifier: Apache-2.0

// Package wholefile writes small files that others find whole at any time, also where their
// writer is killed or the disk is full. It does not wait for the disk: where a node loses its
// power, a file may be empty after it.
package wholefile

import (
	"errors"
	"os"
	"path/filepath"
)

// suffix is that of a file that is not whole yet.
const suffix = ".new"

// Replace puts a file for its owner alone into the place of the one that there is, and makes
// its directory where that is missing. With an error the old file stays.
func Replace(path string, data []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path+suffix, data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+suffix, path)
}

// Remove removes a file, and what Replace could not finish; that there is none is no failure.
func Remove(path string) (failed error) {
	for _, name := range []string{path, path + suffix} {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}
