// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/traffic"
)

// spare makes the subflows of one path backups.
func spare(path v1alpha1.PathName) v1alpha1.Rule {
	backup := true
	return v1alpha1.Rule{
		Name:    "spare",
		Match:   &v1alpha1.Match{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{path}}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: &backup}}},
	}
}

// A backup carries hardly anything in either direction, until the rule is removed.
func TestBackupsRestUntilTheRuleIsRemoved(t *testing.T) {
	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		t.Run("manager "+string(manager), func(t *testing.T) {
			c := use(t)
			policy := shopPolicy(manager)
			c.spread(t, policy, 2)
			c.expectRest(t, policy)
		})
	}
}

// A deleted policy leaves nothing, even while a connection runs that has backups
// for its rules: they become ordinary subflows first.
func TestADeletedPolicyEndsWhatItsRulesDidToARunningConnection(t *testing.T) {
	c := use(t)
	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	c.spread(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 11*time.Second))
	r.SleepUntil(1500 * time.Millisecond)
	c.setRules(t, policy, spare("red"))
	c.WaitFor(t, "red is a backup", 2*time.Second, func(context.Context) error { return c.areBackups(t, "red", 1) })
	if err := c.Client.Delete(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	took := c.WaitFor(t, "nothing is left on nodes and pods", 10*time.Second, c.NothingLeft)
	t.Logf("nothing was left %v after the policy was deleted", took)
	select {
	case <-r.Done:
		t.Error("it was gone with the connection alone")
	default:
	}
	r.Finish(t)
}

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

func (c *cluster) expectRest(t *testing.T, policy *v1alpha1.MPTCPPolicy) {
	t.Helper()
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, restTime)),
		c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Down, restTime)),
	}
	transfers[0].SleepUntil(restBegins)
	c.setRules(t, policy, spare("red"))
	c.WaitFor(t, "the agents tell which subflows are backups", 8*time.Second, func(context.Context) error { return c.areBackups(t, "red", len(transfers)) })
	told := time.Now().Add(settling)
	time.Sleep(time.Until(told.Add(resting)))
	removed := time.Now()
	c.setRules(t, policy)
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
	others := slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == path })
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

// areBackups: the subflows of this path alone are told to be backups. That of a
// subflow is not known before it is seen to carry a packet, and a backup may not.
func (c *cluster) areBackups(t *testing.T, path string, wanted int) error {
	for _, pod := range []string{"client", "server"} {
		backups := 0
		for _, subflow := range c.subflowsOf(t, pod) {
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
			return fmt.Errorf("%s has %d backups", pod, backups)
		}
	}
	return nil
}
