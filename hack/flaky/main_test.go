// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	spread = "braid.dev/braid/e2e.TestSpread"
	report = spread + ": 2 runs, 1 failures\n" + spread + "/to_10.0.0.1:_all: 2 runs, 1 failures\n"
)

var today = time.Date(2026, 2, 28, 23, 0, 0, 0, time.UTC)

func excused(change func(*entry)) entry {
	e := entry{Test: spread, Cause: "unknown", Since: "2026-02-01", Until: "2026-02-28", Seen: "abc"}
	if change != nil {
		change(&e)
	}
	return e
}

func TestWhatTheRecordExcuses(t *testing.T) {
	other := func(e *entry) { e.Test = "braid.dev/braid/e2e.TestOther" }
	past := func(e *entry) { e.Until = "2026-02-27" }
	tests := map[string]struct {
		record  []entry
		tests   []string
		commits int
		unknown error
		want    string // part of the error; empty for none
	}{
		"nothing needed its second run":               {nil, nil, 0, nil, ""},
		"a test that is not in the record":            {nil, []string{spread}, 99, nil, ""},
		"another test is in the record":               {[]entry{excused(other)}, []string{spread}, 0, nil, ""},
		"ten commits after the last time":             {[]entry{excused(nil)}, []string{spread}, 10, nil, ""},
		"nine commits after the last time":            {[]entry{excused(nil)}, []string{spread}, 9, nil, "more than once in 10 runs"},
		"the commit is not known":                     {[]entry{excused(nil)}, []string{spread}, 0, errors.New("no such commit"), "no such commit"},
		"one whose end has passed":                    {[]entry{excused(past)}, []string{spread}, 99, nil, "was excused until 2026-02-27"},
		"one whose end has passed and that passed":    {[]entry{excused(past)}, nil, 99, nil, "was excused until 2026-02-27"},
		"one that is twice in the record":             {[]entry{excused(nil), excused(nil)}, nil, 99, nil, "twice"},
		"one without a cause":                         {[]entry{excused(func(e *entry) { e.Cause = "" })}, nil, 99, nil, "must be set"},
		"one without a commit":                        {[]entry{excused(func(e *entry) { e.Seen = "" })}, nil, 99, nil, "must be set"},
		"one that is excused for longer than a month": {[]entry{excused(func(e *entry) { e.Until = "2026-03-05" })}, nil, 99, nil, "more than 31 days"},
		"one with a date that is none":                {[]entry{excused(func(e *entry) { e.Until = "soon" })}, nil, 99, nil, "until"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := record{test.record}.judge(test.tests, today, func(string) (int, error) { return test.commits, test.unknown })
			if test.want == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, test.want)
			}
		})
	}
}

func TestReportsAreRead(t *testing.T) {
	tests, err := testsOf(report + "\nbraid.dev/braid/bpf.FuzzParse: 2 runs, 2 failures\n")
	require.NoError(t, err)
	require.Equal(t, []string{spread, "braid.dev/braid/bpf.FuzzParse"}, tests)
	_, err = testsOf("3 tests were run again\n")
	require.ErrorContains(t, err, "not understood")
}

func TestTheRecordOfThisRepositoryIsSound(t *testing.T) {
	require.NoError(t, run(&strings.Builder{}, options{report: filepath.Join(t.TempDir(), "absent"), record: "../flaky.yaml", check: true}))
}

// In a repository of its own, the count is of commits after the one in the record.
func TestFromReportToVerdict(t *testing.T) {
	directory := t.TempDir()
	t.Chdir(directory)
	commit := func() string {
		_, err := git("-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--allow-empty", "--message", "a")
		require.NoError(t, err)
		head, err := git("rev-parse", "HEAD")
		require.NoError(t, err)
		return head
	}
	_, err := git("init", "--quiet")
	require.NoError(t, err)
	seen := commit()
	date := time.Now().Format(time.DateOnly)
	record := "tests:\n- {test: " + spread + ", cause: unknown, since: \"" + date + "\", until: \"" + date + "\", seen: " + seen + "}\n"
	require.NoError(t, os.WriteFile("record.yaml", []byte(record), 0o600))
	require.NoError(t, os.WriteFile("report", []byte(report), 0o600))
	var out strings.Builder
	require.NoError(t, run(&out, options{report: "report", record: "record.yaml"}))
	require.Contains(t, out.String(), spread)
	for range rarely {
		require.ErrorContains(t, run(&out, options{report: "report", record: "record.yaml", check: true}), "more than once in 10 runs")
		commit()
	}
	require.NoError(t, run(&out, options{report: "report", record: "record.yaml", check: true}))
	_, err = commitsSince("0123456789012345678901234567890123456789")
	require.Error(t, err)
}

func TestTestsThatAreNewToTheRecordAreToldAndMustBeFew(t *testing.T) {
	directory := t.TempDir()
	paths := []string{filepath.Join(directory, "report"), filepath.Join(directory, "record.yaml")}
	require.NoError(t, os.WriteFile(paths[1], []byte("tests: []\n"), 0o600))
	var told strings.Builder
	require.NoError(t, os.WriteFile(paths[0], []byte(report), 0o600))
	require.NoError(t, run(&told, options{report: paths[0], record: paths[1], check: true}))
	require.Contains(t, told.String(), spread+" needed its second run: find the cause")
	var many strings.Builder
	for _, name := range []string{"A", "B", "C"} {
		many.WriteString(spread + name + ": 2 runs, 1 failures\n")
	}
	require.NoError(t, os.WriteFile(paths[0], []byte(many.String()), 0o600))
	require.ErrorContains(t, run(&told, options{report: paths[0], record: paths[1], check: true}), "3 tests that are not in the record")
}
