// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// demoVariable makes the test's program be the demo, under this name.
const demoVariable = "BRAID_DEMO_TEST"

func TestMain(m *testing.M) {
	lab.RunRole()
	if other := os.Getenv(demoVariable); other != "" {
		name = other
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAnInterruptedDemoLeavesNothing(t *testing.T) {
	name := fmt.Sprintf("demo%d", os.Getpid())
	demo := exec.Command("/proc/self/exe")
	demo.Env = append(os.Environ(), demoVariable+"="+name)
	var out bytes.Buffer
	demo.Stdout, demo.Stderr = &out, &out
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = demo.Process.Kill() }()
	waitForFile(t, filepath.Join(lab.Directory(name), "logs", "agent-node1.log"))
	if err := demo.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := demo.Wait(); err == nil || demo.ProcessState.ExitCode() != 130 {
		t.Errorf("the demo ended with %v: %s", err, &out)
	}
	if left, err := network.Namespaces(name); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := os.Stat(lab.Directory(name)); err == nil {
		t.Error("the lab's directory is left")
	}
}

func waitForFile(t *testing.T, file string) {
	t.Helper()
	testutil.Retry(t, 2*time.Minute, func() error {
		_, err := os.Stat(file)
		return err
	})
}

func TestTheResultHasTheKeysThatAreDocumented(t *testing.T) {
	file := filepath.Join(t.TempDir(), "out", "demo.json")
	written := result{Links: 3, PerPathMbit: map[string]float64{"blue": 97.1}}
	if err := written.write(file); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var read map[string]any
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	expected := []string{"backToSingleMbit", "kernel", "kubernetes", "linkMbit", "links", "perPathMbit", "ratio", "singlePathMbit", "spreadMbit"}
	if keys := slices.Sorted(maps.Keys(read)); !slices.Equal(keys, expected) {
		t.Errorf("keys %v", keys)
	}
}

func TestBarsGrowWithTheRateUpToTheLinks(t *testing.T) {
	picture := newScreenFor(new(bytes.Buffer), true).picture([]string{"blue", "green", "red"}, 100)
	lines := strings.Split(picture.bars(map[string]float64{"blue": 50, "green": 130}), "\n")
	for i, expected := range []int{20, 40, 0} {
		if got := strings.Count(lines[i], "█"); got != expected {
			t.Errorf("line %d has a bar of %d instead of %d: %s", i, got, expected, lines[i])
		}
	}
}

func TestThePictureIsDrawnOverOnATerminalAndNowhereElse(t *testing.T) {
	for terminal, up := range map[bool]int{true: 1, false: 0} {
		var out bytes.Buffer
		picture := newScreenFor(&out, terminal).picture([]string{"blue"}, 100)
		picture.draw(map[string]float64{"blue": 1})
		picture.draw(map[string]float64{"blue": 2})
		if got := strings.Count(out.String(), "\x1b[1A"); got != up {
			t.Errorf("terminal %t: %d moves up in %q", terminal, got, out.String())
		}
		if strings.Contains(out.String(), "\x1b") != terminal {
			t.Errorf("terminal %t: %q", terminal, out.String())
		}
	}
}

func TestTheMedianLeavesTheBeginningOut(t *testing.T) {
	measured := traffic.Result{BinMs: 500, Bins: make([]int64, 10)}
	for i := range measured.Bins {
		measured.Bins[i] = 6_250_000 // 100 Mbit/s
	}
	measured.Bins[0], measured.Bins[1], measured.Bins[5] = 0, 0, 0
	if got := median(&measured); got != 100 {
		t.Errorf("median %v", got)
	}
}

func TestRatesOfPathsAreThoseOfTheSteadyState(t *testing.T) {
	at := func(seconds, bytes int64) sample {
		return sample{seconds * 1e9, map[string]network.Counters{"blue": {TxBytes: uint64(bytes)}}}
	}
	samples := []sample{at(10, 0), at(11, 1_000_000), at(13, 26_000_000), at(15, 51_000_000), at(16, 51_000_000)}
	if got := rates(samples, 10e9)["blue"]; got != 100 {
		t.Errorf("%v Mbit/s", got)
	}
	if got := rates(samples[:1], 10e9); got != nil {
		t.Errorf("rates of one sample: %v", got)
	}
}

func TestATransferIsToldInTheWordsOfTheSelfTest(t *testing.T) {
	whole := account(&traffic.Result{Bytes: 30_000_000, LatestMs: 400, LongestGapMs: 28.4, Multipath: true}, 2*time.Second)
	if whole.Milliseconds != 2400 || whole.SentBytes != 30_000_000 || whole.LongestStandstillMilliseconds != 28 || !whole.Multipath || !whole.Ended || whole.Error != "" {
		t.Errorf("got %+v", whole)
	}
	if broken := account(&traffic.Result{Failed: 1, Errors: []string{"reset"}}, time.Second); !strings.Contains(broken.Error, "reset") {
		t.Errorf("got %+v", broken)
	}
}

func TestAStepTellsHowItEnded(t *testing.T) {
	var out bytes.Buffer
	screen := newScreenFor(&out, false)
	screen.step("a thing")(nil)
	screen.step("another")(unix.EPERM)
	if text := out.String(); !strings.Contains(text, "✓ a thing") || !strings.Contains(text, "✗ another") {
		t.Errorf("printed %q", text)
	}
}

func TestDownWithoutALabIsNoError(t *testing.T) {
	if err := lab.Down(context.Background(), "demonone", func(string) {}); err != nil {
		t.Error(err)
	}
}
