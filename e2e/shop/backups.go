// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
)

// Phases of the transfers. What is measured begins when it is known that the rule
// holds, so that a busy machine takes longer and finds the same.
const (
	restBegins = 2 * time.Second
	// restTime is long enough for all of it on a busy machine.
	restTime = 18 * time.Second
	// settling is how long after the ends were told data that is under way may still
	// go out on a backup.
	settling = 300 * time.Millisecond
	// resting is how long a backup is looked at.
	resting = 2 * time.Second
)

// ExpectRest makes the subflows of red backups while connections send both ways.
func (c *Cluster) ExpectRest(t *testing.T, policy *v1alpha1.MPTCPPolicy) {
	t.Helper()
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, restTime)),
		c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Down, restTime)),
	}
	transfers[0].SleepUntil(restBegins)
	c.SetRules(t, policy, Spare("red"))
	c.WaitFor(t, "the agents tell which subflows are backups", 8*time.Second, func(context.Context) error { return c.AreBackups(t, "red", len(transfers)) })
	told := time.Now().Add(settling)
	time.Sleep(time.Until(told.Add(resting)))
	removed := time.Now()
	c.SetRules(t, policy)
	for _, r := range transfers {
		r.Finish(t)
		expectRestOf(t, r, "red", told, removed)
	}
}

// expectRest: the path carried its share before there was a rule, nothing to speak of
// from when the ends had been told, while the others went on, and its share again after
// the rule was removed.
func expectRestOf(t *testing.T, r *testlab.Running, path string, told, removed time.Time) {
	t.Helper()
	before, while := r.Shares(testlab.Warmup, restBegins), r.Wire.Rates(told, removed)
	took, again := r.Wire.CarriesAgain(path, removed)
	t.Logf("%s: before the rule %v; with it %v (%s %.3f); it carried its share again %v after the rule was removed",
		r, before, while, path, while[path], took)
	if before[path] < testlab.Carried {
		t.Errorf("%s: before the rule %s carries %.1f Mbit/s", r, path, before[path])
	}
	others := slices.DeleteFunc(slices.Clone(Paths), func(p string) bool { return p == path })
	if used := while.Used(); !slices.Equal(used, others) {
		t.Errorf("%s: with the rule %v carry a share, not %v", r, used, others)
	}
	if all := while["red"] + while["green"] + while["blue"]; while[path] > all/100 {
		t.Errorf("%s: with the rule %s carries %.3f of %.1f Mbit/s", r, path, while[path], all)
	}
	if !again {
		t.Errorf("%s: %s did not carry its share again: %v at the end", r, path, r.Shares(restTime-time.Second, restTime))
	}
}

// AreBackups fails unless the subflows of this path alone are told to be backups. That of a
// subflow is not known before it is seen to carry a packet, and a backup may not.
func (c *Cluster) AreBackups(t *testing.T, path string, wanted int) error {
	for _, pod := range []string{"client", "server"} {
		backups, all := 0, c.SubflowsOf(t, pod)
		for _, subflow := range all {
			if subflow.Ended {
				continue
			}
			if isOfPath := subflow.Path == path || subflow.Path == "" && subflow.Backup; subflow.Backup != isOfPath {
				return fmt.Errorf("%s tells %+v", pod, subflow)
			}
			if subflow.Backup {
				backups++
			}
		}
		if backups != wanted {
			return fmt.Errorf("%s has %d backups: %+v", pod, backups, all)
		}
	}
	return nil
}
