// SPDX-License-Identifier: Apache-2.0

package product

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"braid.dev/braid/hack/bench/rig"
)

// The figures of measureSecurity, and those of e2e/attacks from which it takes them.
var securityFigures = []rig.Unit{{"security.escapes.*", "attempts"}, {"security.least_goodput_pct", "%"}, {"security.programming_later_ms", "ms"}}

// isolationTests are the tests of e2e whose subtests are attempts.
const isolationTests = "^(TestATenant|TestRulesOfATenant)"

// measureSecurity makes the attempts of e2e/attacks and those of e2e. They are made once,
// whatever the number of trials, and one that succeeds is a figure, no error.
func measureSecurity(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	attacks := rig.NewMeasurement(m.Options, securityFigures)
	if err := runTest(ctx, attacks, "./e2e/attacks", "TestNoAttackSucceeds"); err != nil {
		if len(attacks.Values("security.escapes.tried")) == 0 {
			return err
		}
		rig.Say("%v", err)
	}
	tried, succeeded, err := countSubtests(ctx, "./e2e", isolationTests)
	if err != nil {
		return err
	}
	m.Add("security.escapes.tried", attacks.Last("security.escapes.tried")+float64(tried))
	m.Add("security.escapes.succeeded", attacks.Last("security.escapes.succeeded")+float64(succeeded))
	for _, cost := range []string{"security.least_goodput_pct", "security.programming_later_ms"} {
		m.Add(cost, attacks.Last(cost))
	}
	return nil
}

// countSubtests runs tests and counts those that have no subtests, and of these the ones
// that failed.
func countSubtests(ctx context.Context, of, pattern string) (all, failed int, err error) {
	command := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout", "0", "-json", "-run", pattern, of)
	command.Stderr = os.Stderr
	out, err := command.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, 0, fmt.Errorf("running the tests of %s: %w", of, err)
	}
	return countLeaves(bytes.NewReader(out))
}

// countLeaves reads the events of go test.
func countLeaves(events io.Reader) (all, failed int, err error) {
	outcomes := map[string]string{}
	decoder := json.NewDecoder(events)
	for {
		var event struct{ Action, Test string }
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return 0, 0, fmt.Errorf("reading what go test says: %w", err)
		}
		if event.Test != "" && (event.Action == "pass" || event.Action == "fail") {
			outcomes[event.Test] = event.Action
		}
	}
	parents := map[string]bool{}
	for test := range outcomes {
		for at := strings.LastIndex(test, "/"); at > 0; at = strings.LastIndex(test[:at], "/") {
			parents[test[:at]] = true
		}
	}
	for test, outcome := range outcomes {
		if parents[test] {
			continue
		}
		all++
		if outcome == "fail" {
			failed++
		}
	}
	if all == 0 {
		return 0, 0, errors.New("go test ran no test")
	}
	return all, failed, nil
}
