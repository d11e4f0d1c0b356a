// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/testutil"
)

// inCluster runs a test of e2e/cluster and takes its figures. What it counts happens
// once, whatever the number of trials.
func inCluster(test string, environment ...string) func(context.Context, *rig.Measurement, rig.Nothing) error {
	return func(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
		return runTest(ctx, m, "./e2e/cluster", test, environment...)
	}
}

// inLab measures what a test of a package tells.
func inLab(of, test string) func(context.Context, *rig.Measurement, rig.Nothing) error {
	return func(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error { return runTest(ctx, m, of, test) }
}

func runTest(ctx context.Context, m *rig.Measurement, of, test string, environment ...string) (err error) {
	directory, err := os.MkdirTemp("", "braid-figures-")
	if err != nil {
		return fmt.Errorf("making a directory for figures: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	path := filepath.Join(directory, "figures")
	command := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout", "0", "-v", "-run", "^"+test+"$", of)
	command.Env = append(append(os.Environ(), environment...), testutil.FiguresVariable+"="+path)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	// A test that fails has figures too: what was lost.
	failed := command.Run()
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s left no figures: %w (%w)", test, err, failed)
	}
	if err := addLines(m, string(text)); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("running %s: %w", test, failed)
	}
	return nil
}

// addLines takes figures of name, unit and value with tabs between them.
func addLines(m *rig.Measurement, text string) error {
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 {
			return fmt.Errorf("%q is not a figure", line)
		}
		value, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return fmt.Errorf("reading a figure: %w", err)
		}
		m.Add(fields[0], value)
	}
	return nil
}
