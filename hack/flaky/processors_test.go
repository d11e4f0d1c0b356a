// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/pressure"
)

func TestTestsThatAMachineShortOfProcessorsDisturbedAreToldApart(t *testing.T) {
	begin := time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC)
	// Processors are short in the first ten seconds of each minute.
	var samples, times, reports strings.Builder
	for second := range 600 {
		s := sample{At: begin.Add(time.Duration(second) * time.Second), Waited: 5}
		if second%60 < 10 {
			s.Waited, s.Stolen = 50, 10
		}
		line, err := json.Marshal(s)
		require.NoError(t, err)
		fmt.Fprintf(&samples, "%s\n", line)
	}
	fails := func(name string, ended, elapsed time.Duration) {
		line, err := json.Marshal(event{Time: begin.Add(ended), Action: "fail", Package: "p", Test: name, Elapsed: elapsed.Seconds()})
		require.NoError(t, err)
		fmt.Fprintf(&times, "%s\n", line)
		fmt.Fprintf(&reports, "p.%s: 2 runs, 1 failures\n", name)
	}
	directory := t.TempDir()
	o := options{report: filepath.Join(directory, "report"), record: "../flaky.yaml", check: true, times: filepath.Join(directory, "times-*.json"), processors: filepath.Join(directory, "processors")}
	judge := func() (string, error) {
		for path, content := range map[string]string{o.report: reports.String(), filepath.Join(directory, "times-a.json"): times.String(), o.processors: samples.String()} {
			require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		}
		var told strings.Builder
		err := run(&told, o)
		return told.String(), err
	}
	for minute, name := range []string{"TestA", "TestB", "TestC"} {
		fails(name, time.Duration(minute)*time.Minute+8*time.Second, 6*time.Second)
	}
	told, err := judge()
	require.NoError(t, err)
	require.Contains(t, told, "p.TestA needed its second run: something waited for a processor for 60 % of its time")
	// Its second failure, on a calm machine, says nothing of its first.
	fails("TestA", 40*time.Second, time.Second)
	_, err = judge()
	require.NoError(t, err)
	for minute, name := range []string{"TestD", "TestE", "TestF"} {
		fails(name, time.Duration(minute)*time.Minute+40*time.Second, 20*time.Second)
	}
	told, err = judge()
	require.ErrorContains(t, err, "3 tests that are not in the record needed their second run: p.TestD, p.TestE, p.TestF")
	require.Contains(t, told, "5 % of its time")
}

func TestManyDisturbedTestsAreTooMany(t *testing.T) {
	m := machine{samples: []sample{{At: time.Unix(10, 0), Waited: 90}}, failed: map[string][2]time.Time{}}
	var fresh []string
	for i := range disturbed + 1 {
		fresh = append(fresh, fmt.Sprintf("p.Test%d", i))
		m.failed[fresh[i]] = [2]time.Time{time.Unix(9, 0), time.Unix(10, 0)}
	}
	require.NoError(t, tell(&strings.Builder{}, fresh[1:], m, ""))
	require.ErrorContains(t, tell(&strings.Builder{}, fresh, m, ""), "7 tests that are not in the record needed their second run, on a machine short of processors")
}

func TestWhatIsNotKnownOfTheMachineExcusesNothing(t *testing.T) {
	m := machine{failed: map[string][2]time.Time{"p.TestA": {time.Unix(9, 0), time.Unix(10, 0)}}}
	_, known := m.short("p.TestA")
	require.False(t, known)
	m.samples = []sample{{At: time.Unix(30, 0), Waited: 100}}
	_, known = m.short("p.TestA")
	require.False(t, known)
	_, known = m.short("p.TestB")
	require.False(t, known)
}

func TestASampleIsOfThePartOfItsTime(t *testing.T) {
	is := pressure.Counters{Waited: 500 * time.Millisecond, Stolen: 200 * time.Millisecond}
	require.Equal(t, sample{At: time.Unix(12, 0), Waited: 25, Stolen: 10}, sampleOf(is, 2*time.Second, time.Unix(12, 0)))
}

func TestProcessorsAreWatchedUntilTheEnd(t *testing.T) {
	ctx, stop := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer stop()
	var out strings.Builder
	require.NoError(t, watch(ctx, &out, 20*time.Millisecond))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Greater(t, len(lines), 2)
	for _, line := range lines {
		var s sample
		require.NoError(t, json.Unmarshal([]byte(line), &s))
		require.GreaterOrEqual(t, s.Waited, 0.0)
	}
}
