// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/traffic"
)

// hidingVariable is how long announcements are hidden, where that is to be longer
// than in every run.
const hidingVariable = "BRAID_E2E_HIDING"

func hidingTime(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(hidingVariable)
	if text == "" {
		return 10 * time.Second
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", hidingVariable, err)
	}
	return duration
}

// hide keeps the pods from hearing which addresses their peers announce.
var hide = v1alpha1.Rule{
	Name: "hide",
	Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{
		Direction: v1alpha1.DirectionToEndpoint, PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketAddAddr},
	}},
	Actions: []v1alpha1.Action{{Type: v1alpha1.ActionSuppressAddAddr}},
}

// onlyAnnounced refuses the joins that need no announcement, with which the path
// manager helps out.
var onlyAnnounced = v1alpha1.Rule{
	Name: "only-announced",
	Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{
		Direction: v1alpha1.DirectionFromEndpoint, PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketMPJoin},
		Destination: &v1alpha1.Side{Ports: []v1alpha1.PortRange{{Port: lab.TrafficPort}}},
	}},
	Actions: []v1alpha1.Action{{Type: v1alpha1.ActionReset}},
}

// What the listening pod announces is hidden, also when it is repeated; once the
// rule is gone the connection gets its subflows.
func TestAnnouncedAddressesAreHiddenUntilTheRuleIsRemoved(t *testing.T) {
	for _, test := range []struct {
		name       string
		version    int
		timestamps string // an IPv6 announcement with a port has no room beside them
	}{
		{"IPv4", 4, "1"},
		{"IPv6", 6, "0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := use(t)
			for _, name := range []string{"client", "server"} {
				pod := c.Network.Pod(name)
				shop.SetForTest(t, pod.Namespace, "net.ipv4.tcp_timestamps", test.timestamps)
				shop.SetForTest(t, pod.Namespace, "net.mptcp.add_addr_timeout", "2")
			}
			policy := shop.Policy(v1alpha1.SubflowManagerKernel)
			policy.Spec.Rules = []v1alpha1.Rule{hide, onlyAnnounced}
			c.Spread(t, policy, 2)
			c.expectHidden(t, policy, test.version)
		})
	}
}

// afterHiding is the rest of a transfer whose announcements are given back.
const afterHiding = 4 * time.Second

func (c *cluster) expectHidden(t *testing.T, policy *v1alpha1.MPTCPPolicy, version int) {
	t.Helper()
	hiding := hidingTime(t)
	transfers := []*testlab.Running{
		c.Begin(t, testlab.NewTransfer("client", "server", version, traffic.Up, hiding+afterHiding)),
		c.Begin(t, testlab.NewTransfer("client", "server", version, traffic.Down, hiding+afterHiding)),
	}
	for begin := time.Now(); time.Since(begin) < hiding; time.Sleep(testlab.Sampling) {
		for _, r := range transfers {
			if joined := shop.JoinedBy(t, r); joined.IsValid() {
				t.Fatalf("%s: %v was joined after %v, though its announcement is hidden", r, joined, time.Since(r.Began))
			}
		}
	}
	hidden := c.RuleNamed(t, "client", "hide")
	t.Logf("in %v %d announcements were hidden", hiding, hidden.Acted)
	if hidden.Acted < 4 || hidden.Acted != hidden.Hits {
		t.Errorf("the announcement was not hidden each time that it was made: %+v", hidden)
	}
	for _, r := range transfers {
		if count := r.Carrying(t); count != 1 {
			t.Errorf("%s: with the rule %d subflows carry payload: %+v", r, count, r.Subflows(t))
		}
	}
	changed := time.Now()
	c.SetRules(t, policy, onlyAnnounced)
	for _, r := range transfers {
		c.WaitFor(t, "an announced address is joined", 5*time.Second, func(context.Context) error {
			if !shop.JoinedBy(t, r).IsValid() {
				return fmt.Errorf("%s: the subflows are %+v", r, r.Subflows(t))
			}
			return nil
		})
		took := time.Since(changed)
		t.Logf("%s: an announced address was joined %v after the rule was removed", r, took)
		if took > 2*time.Second {
			t.Errorf("%s: the join came %v after the rule was removed", r, took)
		}
	}
	for _, r := range transfers {
		r.Finish(t)
	}
}
