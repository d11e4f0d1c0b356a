// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	"braid.dev/braid/hack/lines"
	"braid.dev/braid/internal/pressure"
)

// sample is how much of the time before At something waited for a processor: a task of
// this machine, or the machine itself, in percent.
type sample struct {
	At     time.Time `json:"at"`
	Waited float64   `json:"waited"`
	Stolen float64   `json:"stolen"`
}

// sampleOf is what happened in so much time, until now.
func sampleOf(is pressure.Counters, passed time.Duration, now time.Time) sample {
	percent := func(of time.Duration) float64 { return 100 * of.Seconds() / passed.Seconds() }
	return sample{At: now, Waited: percent(is.Waited), Stolen: percent(is.Stolen)}
}

// watch writes a sample every second until the context ends.
func watch(ctx context.Context, out io.Writer, every time.Duration) error {
	began := time.Now()
	before, err := pressure.Now()
	if err != nil {
		return fmt.Errorf("watching the processors: %w", err)
	}
	ticker, encoder := time.NewTicker(every), json.NewEncoder(out)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		ended := time.Now()
		is, err := pressure.Now()
		if err != nil {
			return fmt.Errorf("watching the processors: %w", err)
		}
		if err := encoder.Encode(sampleOf(is.Since(before), ended.Sub(began), ended)); err != nil {
			return fmt.Errorf("failed to write a sample: %w", err)
		}
		before, began = is, ended
	}
}

// machine is what is known of the processors in a run, and when which tests failed.
type machine struct {
	samples []sample
	failed  map[string][2]time.Time
}

// event is one of gotestsum's --jsonfile-timing-events.
type event struct {
	Time    time.Time
	Action  string
	Package string
	Test    string
	Elapsed float64
}

// readMachine reads what watch wrote and the times of tests; files that are not there tell
// nothing.
func readMachine(samples, times string) (machine, error) {
	m := machine{failed: map[string][2]time.Time{}}
	err := lines.Each(samples, func(line []byte) error {
		var s sample
		err := json.Unmarshal(line, &s)
		m.samples = append(m.samples, s)
		return err
	})
	files, globErr := filepath.Glob(times)
	err = errors.Join(err, globErr)
	for _, file := range files {
		err = errors.Join(err, lines.Each(file, m.noteFailure))
	}
	return m, err
}

// noteFailure keeps when a test failed first, without its subtests.
func (m machine) noteFailure(line []byte) error {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("failed to read the time of a test: %w", err)
	}
	name := e.Package + "." + e.Test
	if _, known := m.failed[name]; e.Action == "fail" && e.Test != "" && !known {
		m.failed[name] = [2]time.Time{e.Time.Add(-time.Duration(e.Elapsed * float64(time.Second))), e.Time}
	}
	return nil
}

// short is how much of a test's time processors were short, in percent, the time stolen from
// the machine included; known is false where nothing was written meanwhile.
func (m machine) short(test string) (percent float64, known bool) {
	during, failed := m.failed[test]
	if !failed {
		return 0, false
	}
	count := 0
	for _, s := range m.samples {
		if s.At.After(during[0]) && !s.At.After(during[1].Add(time.Second)) {
			percent += s.Waited + s.Stolen
			count++
		}
	}
	if count == 0 {
		return 0, false
	}
	return percent / float64(count), true
}
