// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
)

// Counting is a rule that only counts what it matches.
func Counting(name string, match v1alpha1.Match) v1alpha1.Rule {
	return v1alpha1.Rule{Name: name, Match: &match, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}}
}

// Limiting is a rule that bounds the rate of each subflow.
func Limiting(name, rate string) v1alpha1.Rule {
	return v1alpha1.Rule{Name: name, Actions: []v1alpha1.Action{{
		Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse(rate)},
	}}}
}

// Directed matches what goes in a direction.
func Directed(d v1alpha1.Direction) v1alpha1.Match {
	return v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: d}}
}

// Spare makes the subflows of one path backups.
func Spare(path v1alpha1.PathName) v1alpha1.Rule {
	backup := true
	return v1alpha1.Rule{
		Name:    "spare",
		Match:   &v1alpha1.Match{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{path}}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: &backup}}},
	}
}

// SetRules waits until the agents carry out these rules.
func (c *Cluster) SetRules(t *testing.T, policy *v1alpha1.MPTCPPolicy, rules ...v1alpha1.Rule) time.Duration {
	t.Helper()
	c.Update(t, policy, func() { policy.Spec.Rules = rules })
	return c.WaitProgrammed(t, policy, 2)
}

// Hits are the packets that each rule of a pod matched, as the agent's command
// tells.
func (c *Cluster) Hits(t *testing.T, pod string) map[string]uint64 {
	t.Helper()
	hits := map[string]uint64{}
	for _, rule := range c.RulesOf(t, pod) {
		hits[rule.Name] = rule.Hits
	}
	return hits
}

// JoinedBy is an announced address that the connection has a subflow to.
func JoinedBy(t *testing.T, r *testlab.Running) netip.AddrPort {
	t.Helper()
	for _, subflow := range r.Subflows(t) {
		if subflow.Remote.Port() != lab.TrafficPort {
			return subflow.Remote
		}
	}
	return netip.AddrPort{}
}
