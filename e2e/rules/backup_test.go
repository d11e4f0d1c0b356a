// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/traffic"
)

// A backup carries hardly anything in either direction, until the rule is removed.
func TestBackupsRestUntilTheRuleIsRemoved(t *testing.T) {
	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		t.Run("manager "+string(manager), func(t *testing.T) {
			c := use(t)
			policy := shop.Policy(manager)
			c.Spread(t, policy, 2)
			c.ExpectRest(t, policy)
		})
	}
}

// A deleted policy leaves nothing, even while a connection runs that has backups
// for its rules: they become ordinary subflows first.
func TestADeletedPolicyEndsWhatItsRulesDidToARunningConnection(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 11*time.Second))
	r.SleepUntil(1500 * time.Millisecond)
	c.SetRules(t, policy, shop.Spare("red"))
	c.WaitFor(t, "red is a backup", 2*time.Second, func(context.Context) error { return c.AreBackups(t, "red", 1) })
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
