// SPDX-License-Identifier: Apache-2.0

// Command flaky reads gotestsum's report of the tests that were run again because they
// had failed, and names them. With -check it also fails unless hack/flaky.yaml, the
// repository's record of flaky tests, excuses them: see the rules there. With -watch it writes
// how short processors are, from which -check tells the tests that the machine disturbed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"
)

// entry is a test in the record.
type entry struct {
	// Test is its package and name, as the report has them, without a subtest.
	Test string `json:"test"`
	// Cause is why it fails at times, "unknown" while that is not known.
	Cause string `json:"cause"`
	// Since and Until are dates (2006-01-02): when it was found flaky, and the last day
	// on which that is excused.
	Since string `json:"since"`
	Until string `json:"until"`
	// Seen is the commit on which CI needed its second run last.
	Seen string `json:"seen"`
}

type record struct {
	Tests []entry `json:"tests"`
}

const (
	// longest is how far Until may be from Since, in days.
	longest = 31
	// rarely is how many commits, each of which had its run of CI, lie between two
	// second runs of a test, at least.
	rarely = 10
	// newcomers is how many tests that are not in the record may need their second run
	// in one run of CI. They are told, to be recorded: the next time counts.
	newcomers = 2
	// scarce is from how much of a test's time on something waited for a processor, in
	// percent, that the machine is what disturbed it; disturbed is how many such tests there
	// may be.
	scarce    = 35
	disturbed = 6
)

// options are where things are.
type options struct {
	report, record    string
	check             bool
	times, processors string
}

func main() {
	var o options
	var watched string
	flag.BoolVar(&o.check, "check", false, "fail unless the record excuses each test of the report")
	flag.StringVar(&o.record, "record", "hack/flaky.yaml", "the record of flaky tests")
	flag.StringVar(&o.times, "times", "_out/times-*.json", "the times of tests, by gotestsum")
	flag.StringVar(&o.processors, "processors", "_out/processors.json", "what -watch wrote")
	flag.StringVar(&watched, "watch", "", "write to this file how short processors are, each second, until interrupted")
	flag.Parse()
	o.report = flag.Arg(0)
	do := func() error { return run(os.Stdout, o) }
	switch {
	case watched != "" && flag.NArg() == 0:
		do = func() error { return watchInto(watched) }
	case watched != "" || flag.NArg() != 1:
		fmt.Fprintln(os.Stderr, "usage: flaky [-check] [-record FILE] [-times PATTERN] [-processors FILE] REPORT, or flaky -watch FILE")
		os.Exit(2)
	}
	if err := do(); err != nil {
		fmt.Fprintln(os.Stderr, "flaky:", err)
		os.Exit(1)
	}
}

func watchInto(path string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("failed to write how short processors are: %w", err)
	}
	return errors.Join(watch(ctx, file, time.Second), file.Close())
}

func run(out io.Writer, o options) error {
	report, err := os.ReadFile(o.report)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("failed to read the report: %w", err)
	}
	if text := strings.TrimSpace(string(report)); text != "" {
		fmt.Fprintf(out, "=== failed at first, and were run again alone:\n    %s\n", strings.ReplaceAll(text, "\n", "\n    "))
	}
	if !o.check {
		return nil
	}
	known, err := readRecord(o.record)
	if err != nil {
		return err
	}
	machine, err := readMachine(o.processors, o.times)
	tests, reportErr := testsOf(string(report))
	return errors.Join(err, reportErr, tell(out, known.missing(tests), machine, o.record), known.judge(tests, time.Now(), commitsSince))
}

func readRecord(path string) (known record, err error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return known, fmt.Errorf("failed to read the record: %w", err)
	}
	if err := yaml.UnmarshalStrict(content, &known); err != nil {
		return known, fmt.Errorf("failed to read the record %s: %w", path, err)
	}
	return known, nil
}

// tell names the tests that are not in the record, and fails where they are too many: those
// that failed by themselves, or those that a machine short of processors disturbed.
func tell(out io.Writer, fresh []string, m machine, record string) error {
	var alone, beside []string
	for _, test := range fresh {
		short, known := m.short(test)
		if known && short >= scarce {
			beside = append(beside, test)
			fmt.Fprintf(out, "=== %s needed its second run: something waited for a processor for %.0f %% of its time\n", test, short)
			continue
		}
		alone = append(alone, test)
		fmt.Fprintf(out, "=== %s needed its second run: find the cause and mend it, or record it in %s with what is known of the cause\n", test, record)
		if known {
			fmt.Fprintf(out, "    something waited for a processor for %.0f %% of its time\n", short)
		}
	}
	return errors.Join(tooMany(alone, newcomers, ""), tooMany(beside, disturbed, ", on a machine short of processors"))
}

// missing are the tests that are not in the record.
func (r record) missing(tests []string) (missing []string) {
	for _, test := range tests {
		if !slices.ContainsFunc(r.Tests, func(e entry) bool { return e.Test == test }) {
			missing = append(missing, test)
		}
	}
	return missing
}

func tooMany(tests []string, most int, where string) error {
	if len(tests) <= most {
		return nil
	}
	return fmt.Errorf("%d tests that are not in the record needed their second run%s: %s", len(tests), where, strings.Join(tests, ", "))
}

// line is one of gotestsum's report.
var line = regexp.MustCompile(`^(\S+?\.(?:Test|Fuzz|Example)[^/\s]*)(?:/.*)?: \d+ runs?, \d+ failures?$`)

// testsOf lists the tests of a report, without subtests. What cannot be read is an
// error: it might hide a test.
func testsOf(report string) (tests []string, err error) {
	for text := range strings.Lines(report) {
		text = strings.TrimSpace(text)
		match := line.FindStringSubmatch(text)
		switch {
		case text == "":
		case match == nil:
			err = errors.Join(err, fmt.Errorf("the report has a line that is not understood: %q", text))
		case !slices.Contains(tests, match[1]):
			tests = append(tests, match[1])
		}
	}
	return tests, err
}

// judge says what is wrong with the record, and which of the tests it does not excuse.
// Entries past their end are wrong even where their test passed at once: either the
// cause was mended, and the entry goes, or it was not.
func (r record) judge(tests []string, now time.Time, commitsSince func(string) (int, error)) (failed error) {
	known := map[string]entry{}
	for _, e := range r.Tests {
		if _, twice := known[e.Test]; twice {
			failed = errors.Join(failed, fmt.Errorf("%s: is in the record twice", e.Test))
		}
		known[e.Test] = e
		failed = errors.Join(failed, e.check(now))
	}
	for _, test := range tests {
		e, found := known[test]
		if !found {
			continue // this is its first time
		}
		commits, err := commitsSince(e.Seen)
		if err == nil && commits < rarely {
			err = fmt.Errorf("needed its second run again only %d commits after %s: more than once in %d runs of CI", commits, e.Seen, rarely)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", test, err))
		}
	}
	return failed
}

func (e entry) check(now time.Time) error {
	since, err := time.Parse(time.DateOnly, e.Since)
	if err != nil {
		return fmt.Errorf("%s: since: %w", e.Test, err)
	}
	until, err := time.Parse(time.DateOnly, e.Until)
	switch {
	case err != nil:
		return fmt.Errorf("%s: until: %w", e.Test, err)
	case e.Test == "" || e.Cause == "" || e.Seen == "":
		return fmt.Errorf("%q: test, cause and seen must be set", e.Test)
	case until.Sub(since) > longest*24*time.Hour:
		return fmt.Errorf("%s: until is more than %d days after since", e.Test, longest)
	case !now.Before(until.AddDate(0, 0, 1)):
		return fmt.Errorf("%s: was excused until %s: mend it, or take it out of the record where it is mended", e.Test, e.Until)
	}
	return nil
}

// commitsSince counts the commits of this branch after another one. A shallow clone may
// not have that one: then all that it has came after.
func commitsSince(commit string) (int, error) {
	if _, err := git("cat-file", "-e", commit+"^{commit}"); err != nil {
		shallow, err := git("rev-parse", "--is-shallow-repository")
		if err != nil || shallow != "true" {
			return 0, fmt.Errorf("commit %s, on which it needed its second run last, is not known: %w", commit, err)
		}
		return count("HEAD")
	}
	return count(commit + "..HEAD")
}

func count(commits string) (int, error) {
	out, err := git("rev-list", "--count", "--first-parent", commits)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(out)
}

func git(arguments ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-c", "safe.directory=*"}, arguments...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(arguments, " "), err, out)
	}
	return strings.TrimSpace(string(out)), nil
}
