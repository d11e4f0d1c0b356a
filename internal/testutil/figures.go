// SPDX-License-Identifier: Apache-2.0

package testutil

import (
	"errors"
	"fmt"
	"os"
	"testing"
)

// FiguresVariable names a file for figures, as `make bench` asks tests for them.
const FiguresVariable = "BRAID_FIGURES"

// Times is how often a test does what gives a figure: once where none is asked for.
func Times(often int) int {
	if os.Getenv(FiguresVariable) == "" {
		return 1
	}
	return often
}

// Figure reports one that a test measured.
func Figure(t testing.TB, name, unit string, value float64) {
	t.Helper()
	t.Logf("%s: %g %s", name, value, unit)
	path := os.Getenv(FiguresVariable)
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatalf("opening the file of figures: %v", err)
	}
	_, err = fmt.Fprintf(file, "%s\t%s\t%g\n", name, unit, value)
	if err := errors.Join(err, file.Close()); err != nil {
		t.Errorf("writing a figure: %v", err)
	}
}
