// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"braid.dev/braid/internal/testutil"
)

// running are the processes of a lab that have not ended, as it knows them.
func (c *children) running() (processes []*Process) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, p := range c.started {
		if !p.Ended() {
			processes = append(processes, p)
		}
	}
	return processes
}

// bare is a lab that has a directory alone.
func bare(t *testing.T) *Lab {
	t.Helper()
	l := &Lab{Name: labName("bare"), options: Options{Say: func(what string) { t.Log(what) }}}
	if err := os.MkdirAll(l.LogDirectory(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.children.end()
		if err := errors.Join(killMarked(l.Name), os.RemoveAll(Directory(l.Name))); err != nil {
			t.Error(err)
		}
	})
	return l
}

func TestAControlPlanesProcessThatEndsIsStartedAgainUntilTheLabIsRemoved(t *testing.T) {
	l := bare(t)
	if err := l.keepRunning("sleeper", "sh", "-c", "echo its last words; exec sleep 1000"); err != nil {
		t.Fatal(err)
	}
	first := l.children.running()
	if len(first) != 1 {
		t.Fatalf("%d processes run", len(first))
	}
	testutil.Eventually(t, 10*time.Second, "it has said something", func() bool { return first[0].lastWords() != "" })
	if err := first[0].Stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, 10*time.Second, "it runs again", func() bool { return len(l.children.running()) == 1 })
	said := l.LastWords()
	if len(said) != 2 || !strings.HasPrefix(said[0], "sleeper ended: its last words") || !strings.HasPrefix(said[1], "sleeper runs: ") {
		t.Errorf("of its processes it tells %q", said)
	}
	l.children.end()
	if err := l.children.running()[0].Stop(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	time.Sleep(2 * restartAfter)
	if again := l.children.running(); len(again) != 0 {
		t.Errorf("%d processes were started while the lab is removed", len(again))
	}
}
