// SPDX-License-Identifier: Apache-2.0

// Package lines reads what tests and their machine write line by line.
package lines

import (
	"bufio"
	"errors"
	"fmt"
	"os"
)

// Each reads a file; one that is not there has no lines.
func Each(path string, do func([]byte) error) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if err := do(scanner.Bytes()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return scanner.Err()
}
