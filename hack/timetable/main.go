// SPDX-License-Identifier: Apache-2.0

// Command timetable prints what a run of .ci/run did when: its steps, and the packages whose
// tests ran in them.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"braid.dev/braid/hack/lines"
)

// row is what ran: a step, or a package of tests within one.
type row struct {
	began time.Time
	took  time.Duration
	step  string
	what  string // the package; empty for the step itself
}

func main() {
	var steps, times, processors string
	var least time.Duration
	flag.StringVar(&steps, "steps", "_out/ci/steps.txt", "lines of a step's beginning, its seconds and its name")
	flag.StringVar(&times, "times", "_out/times-*.json", "the times of tests, by gotestsum")
	flag.StringVar(&processors, "processors", "_out/processors.json", "what flaky -watch wrote")
	flag.DurationVar(&least, "least", 5*time.Second, "packages that took less are counted alone")
	flag.Parse()
	if err := run(os.Stdout, steps, times, processors, least); err != nil {
		fmt.Fprintln(os.Stderr, "timetable:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, steps, times, processors string, least time.Duration) error {
	rows, err := readSteps(steps)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(times)
	if err != nil {
		return fmt.Errorf("failed to look for the times of tests: %w", err)
	}
	for _, file := range files {
		packages, err := readPackages(file)
		if err != nil {
			return err
		}
		rows = append(rows, packages...)
	}
	samples, err := readSamples(processors)
	if err != nil {
		return err
	}
	return write(out, rows, samples, least)
}

// readSteps reads what .ci/run wrote.
func readSteps(path string) (rows []row, err error) {
	err = lines.Each(path, func(line []byte) error {
		var began, took float64
		var name string
		if _, err := fmt.Sscan(string(line), &began, &took, &name); err != nil {
			return fmt.Errorf("%q is no step: %w", line, err)
		}
		rows = append(rows, row{time.UnixMilli(int64(began * 1000)), seconds(took), name, ""})
		return nil
	})
	return rows, err
}

// readPackages reads gotestsum's --jsonfile-timing-events of a part of the tests. A second run
// of tests is a row of its own.
func readPackages(path string) (rows []row, err error) {
	step := "test-" + strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "times-"), ".json")
	err = lines.Each(path, func(line []byte) error {
		var e struct {
			Time                  time.Time
			Action, Package, Test string
			Elapsed               float64
		}
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("failed to read the time of a test: %w", err)
		}
		if e.Test == "" && (e.Action == "pass" || e.Action == "fail") {
			took := seconds(e.Elapsed)
			rows = append(rows, row{e.Time.Add(-took), took, step, strings.TrimPrefix(e.Package, "braid.dev/braid/")})
		}
		return nil
	})
	return rows, err
}

// sample is how much of the time before something waited for a processor, in percent.
type sample struct {
	At     time.Time `json:"at"`
	Waited float64   `json:"waited"`
}

func readSamples(path string) (samples []sample, err error) {
	err = lines.Each(path, func(line []byte) error {
		var s sample
		if err := json.Unmarshal(line, &s); err != nil {
			return fmt.Errorf("failed to read a sample: %w", err)
		}
		samples = append(samples, s)
		return nil
	})
	return samples, err
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// write prints the rows in the order in which they began. Short packages of a step are told
// with it.
func write(out io.Writer, rows []row, samples []sample, least time.Duration) error {
	if len(rows) == 0 {
		return errors.New("nothing is known of a run")
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Or(a.began.Compare(b.began), cmp.Compare(a.what, b.what)) })
	short := map[string]time.Duration{}
	for _, r := range rows {
		if r.what != "" && r.took < least {
			short[r.step] += r.took
		}
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, "start\tend\tseconds\twaited %\t  what")
	for _, r := range rows {
		what := "  " + r.what
		switch {
		case r.what == "" && short[r.step] > 0:
			what = fmt.Sprintf("%s (%.0f s in packages of less than %v)", r.step, short[r.step].Seconds(), least)
		case r.what == "":
			what = r.step
		case r.took < least:
			continue
		}
		start := r.began.Sub(rows[0].began)
		fmt.Fprintf(table, "%.0f\t%.0f\t%.0f\t%s\t  %s\n", start.Seconds(), (start + r.took).Seconds(), r.took.Seconds(), waited(r, samples), what)
	}
	return table.Flush()
}

// waited is for how much of a row's time something waited for a processor; a dash where that
// is not known.
func waited(r row, samples []sample) string {
	sum, count := 0.0, 0
	for _, s := range samples {
		if s.At.After(r.began) && !s.At.After(r.began.Add(r.took)) {
			sum += s.Waited
			count++
		}
	}
	if count == 0 {
		return "-"
	}
	return fmt.Sprint(math.Round(sum / float64(count)))
}
