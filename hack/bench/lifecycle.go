// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// measureUpgrade counts the connections and requests that an upgrade, a rollback and
// a change of what is pinned lose, in a cluster with kubelets.
func measureUpgrade(ctx context.Context, b *bench) error {
	return measureInCluster(ctx, b, "TestUpgradeAndRollbackLoseNoConnectionAndNoRequest")
}

// measureChaos does so while agents are deleted for five minutes, the API server is
// killed and a node is rebooted.
func measureChaos(ctx context.Context, b *bench) error {
	return measureInCluster(ctx, b, "TestChaosLosesNothingOnOtherNodesAndPasses", "BRAID_E2E_CHAOS=5m")
}

// measureInCluster runs a test of e2e/cluster and takes its figures. What it counts
// happens once, whatever the number of trials.
func measureInCluster(ctx context.Context, b *bench, test string, environment ...string) (err error) {
	directory, err := os.MkdirTemp("", "braid-figures-")
	if err != nil {
		return fmt.Errorf("making a directory for figures: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	path := filepath.Join(directory, "figures")
	command := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout", "30m", "-v", "-run", "^"+test+"$", "./e2e/cluster")
	command.Env = append(append(os.Environ(), environment...), "BRAID_FIGURES="+path)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	// A test that fails has figures too: what was lost.
	failed := command.Run()
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("%s left no figures: %w (%w)", test, err, failed)
	}
	if err := b.addLines(string(text)); err != nil {
		return err
	}
	if failed != nil {
		return fmt.Errorf("running %s: %w", test, failed)
	}
	return nil
}

// addLines takes figures of name, unit and value with tabs between them.
func (f *figures) addLines(text string) error {
	trials := map[[2]string][]float64{}
	for line := range strings.Lines(text) {
		fields := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(fields) != 3 {
			return fmt.Errorf("%q is not a figure", line)
		}
		value, err := strconv.ParseFloat(fields[2], 64)
		if err != nil {
			return fmt.Errorf("reading a figure: %w", err)
		}
		named := [2]string{fields[0], fields[1]}
		trials[named] = append(trials[named], value)
	}
	for named, values := range trials {
		f.add(named[0], named[1], values)
	}
	return nil
}
