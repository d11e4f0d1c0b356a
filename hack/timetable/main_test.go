// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var begin = time.Date(2026, 2, 1, 12, 0, 0, 0, time.UTC)

// files writes those of a run and returns what timetable prints of them.
func files(t *testing.T, contents map[string]string) (string, error) {
	t.Helper()
	directory := t.TempDir()
	for name, content := range contents {
		require.NoError(t, os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600))
	}
	var out strings.Builder
	err := run(&out, filepath.Join(directory, "steps.txt"), filepath.Join(directory, "times-*.json"), filepath.Join(directory, "processors.json"), 5*time.Second)
	return out.String(), err
}

func event(ended float64, action, pkg, test string, elapsed float64) string {
	at := begin.Add(seconds(ended)).Format(time.RFC3339Nano)
	return fmt.Sprintf(`{"Time":%q,"Action":%q,"Package":"braid.dev/braid/%s","Test":%q,"Elapsed":%g}`+"\n", at, action, pkg, test, elapsed)
}

func TestWhatRanIsToldInItsOrderWithWhatWaited(t *testing.T) {
	samples := ""
	for second := range 60 {
		waited := 10
		if second >= 30 {
			waited = 50
		}
		samples += fmt.Sprintf(`{"at":%q,"waited":%d,"stolen":0}`+"\n", begin.Add(time.Duration(second)*time.Second).Format(time.RFC3339), waited)
	}
	out, err := files(t, map[string]string{
		"steps.txt": fmt.Sprintf("%d.5 40.0 test-network\n%d.000 8.2 browser\n", begin.Unix()+8, begin.Unix()),
		"times-network.json": event(20, "pass", "e2e", "TestA", 9) + event(25, "pass", "e2e", "", 14) +
			event(12, "pass", "agent/short", "", 2) + event(13, "fail", "agent/brief", "", 1.4) + event(48, "fail", "e2e/faults", "", 17),
		"processors.json": samples,
	})
	require.NoError(t, err)
	require.Equal(t, []string{
		"start end seconds waited % what",
		"0 8 8 10 browser",
		"8 48 40 29 test-network (3 s in packages of less than 5s)",
		"11 25 14 10 e2e",
		"31 48 17 50 e2e/faults",
	}, words(out))
}

// words are the lines, with one space between words.
func words(text string) (lines []string) {
	for line := range strings.Lines(text) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	return lines
}

func TestARunThatStoppedEarlyIsToldAsFarAsItGot(t *testing.T) {
	out, err := files(t, map[string]string{"steps.txt": fmt.Sprintf("%d 8.2 browser\n", begin.Unix())})
	require.NoError(t, err)
	require.Equal(t, []string{"start end seconds waited % what", "0 8 8 - browser"}, words(out))
}

func TestAFileThatIsNotUnderstoodIsAnError(t *testing.T) {
	_, err := files(t, map[string]string{"steps.txt": "browser 8\n"})
	require.ErrorContains(t, err, "is no step")
	_, err = files(t, map[string]string{"times-a.json": "{\n"})
	require.ErrorContains(t, err, "failed to read the time of a test")
	_, err = files(t, nil)
	require.ErrorContains(t, err, "nothing is known of a run")
}
