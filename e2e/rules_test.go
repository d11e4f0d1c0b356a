// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/e2e/testlab"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/traffic"
)

// counting is a rule that only counts what it matches.
func counting(name string, match v1alpha1.Match) v1alpha1.Rule {
	return v1alpha1.Rule{Name: name, Match: &match, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}}
}

// limiting is a rule that bounds the rate of each subflow.
func limiting(name, rate string) v1alpha1.Rule {
	return v1alpha1.Rule{Name: name, Actions: []v1alpha1.Action{{
		Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse(rate)},
	}}}
}

func direction(d v1alpha1.Direction) v1alpha1.Match {
	return v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: d}}
}

// hits are the packets that each rule of a pod matched, as the agent's command
// tells.
func (c *cluster) hits(t *testing.T, pod string) map[string]uint64 {
	t.Helper()
	hits := map[string]uint64{}
	for _, rule := range c.rulesOf(t, pod) {
		hits[rule.Name] = rule.Hits
	}
	return hits
}

// setRules waits until the agents carry out these rules.
func (c *cluster) setRules(t *testing.T, policy *v1alpha1.MPTCPPolicy, rules ...v1alpha1.Rule) time.Duration {
	t.Helper()
	c.Update(t, policy, func() { policy.Spec.Rules = rules })
	return c.WaitProgrammed(t, policy, 2)
}

// ruledTime leaves time to load the programs, which the kernel verifies for seconds.
const ruledTime = 15 * time.Second

// Rules come, change, trade places and go while a connection runs, which notices
// nothing of it.
func TestRulesChangeWhileTrafficRuns(t *testing.T) {
	c := use(t)
	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	sent, received := counting("sent", direction(v1alpha1.DirectionFromEndpoint)), counting("received", direction(v1alpha1.DirectionToEndpoint))
	c.spread(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, ruledTime))
	r.SleepUntil(1500 * time.Millisecond)
	before, err := c.podPrograms()
	require.NoError(t, err)
	t.Logf("rules were programmed after %v", c.setRules(t, policy, sent))
	time.Sleep(time.Second)
	first := c.hits(t, "client")
	if first["sent"] == 0 || len(first) != 1 {
		t.Errorf("the rule's hits are %v", first)
	}
	t.Logf("more rules were programmed after %v", c.setRules(t, policy, received, sent))
	time.Sleep(time.Second)
	second := c.hits(t, "client")
	if second["sent"] <= first["sent"] || second["received"] == 0 {
		t.Errorf("the rules' hits were %v and are %v", first, second)
	}
	t.Logf("no rules were programmed after %v", c.setRules(t, policy))
	c.expectPrograms(t, before)
	r.Finish(t)
	stop := r.LongestStop(testlab.Warmup, ruledTime)
	t.Logf("nothing arrived for %v at most", stop)
	if stop > noticeable {
		t.Errorf("nothing arrived for %v", stop)
	}
}

// podPrograms are the programs at the host's ends of the pods' interfaces.
func (c *cluster) podPrograms() (programs []ebpf.ProgramID, err error) {
	for _, name := range []string{"client", "server"} {
		pod := c.Network.Pod(name)
		index, err := pod.Node.Index(pod.HostInterface)
		if err != nil {
			return nil, err
		}
		if err := pod.Node.Do(func() error {
			found, err := programsOn(index)
			programs = append(programs, found...)
			return err
		}); err != nil {
			return nil, err
		}
	}
	return programs, nil
}

// expectPrograms waits until the pods' interfaces have these programs alone.
func (c *cluster) expectPrograms(t *testing.T, wanted []ebpf.ProgramID) {
	t.Helper()
	c.WaitFor(t, "the interfaces of pods have the programs of before the rules", 5*time.Second, func(context.Context) error {
		programs, err := c.podPrograms()
		if err == nil && !slices.Equal(programs, wanted) {
			err = fmt.Errorf("they have %v and had %v", programs, wanted)
		}
		return err
	})
}

// A rate of 10 Mbit/s for each of the three subflows holds until it is lifted.
func TestARuleLimitsTheRateOfSubflows(t *testing.T) {
	c := use(t)
	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	policy.Spec.Rules = []v1alpha1.Rule{limiting("slow", "10M")}
	c.spread(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 6*time.Second))
	r.SleepUntil(3 * time.Second)
	c.setRules(t, policy)
	r.Finish(t)
	limited, free := r.Result.MbitBetween(testlab.Warmup, 3*time.Second), r.Result.MbitBetween(4*time.Second, 6*time.Second)
	t.Logf("%.1f Mbit/s with the rule, %.1f without", limited, free)
	if limited < 25 || limited > 33 {
		t.Errorf("with the rule the goodput is %.1f Mbit/s instead of 30", limited)
	}
	if free < 2*limited {
		t.Errorf("without the rule the goodput is %.1f Mbit/s", free)
	}
}

// An agent that is started again finds its chains, and their counters; a removal
// without one leaves nothing.
func TestChainsOutliveTheirAgent(t *testing.T) {
	c := use(t)
	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	policy.Spec.Rules = []v1alpha1.Rule{counting("sent", direction(v1alpha1.DirectionFromEndpoint)), limiting("slow", "30M")}
	c.spread(t, policy, 2)
	c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, shortTime))
	node := c.Network.Pod("client").Node
	before := c.hits(t, "client")
	c.Kill(t, node)
	if without := c.hits(t, "client"); without["sent"] < before["sent"] {
		t.Errorf("without the agent the hits are %v instead of %v", without, before)
	}
	c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, shortTime))
	between := c.hits(t, "client")
	c.Start(t, node)
	c.expectTakenOver(t, policy)
	if after := c.hits(t, "client"); between["sent"] <= before["sent"] || after["sent"] < between["sent"] {
		t.Errorf("the hits were %v, without the agent %v, and are %v", before, between, after)
	}
	c.Kill(t, node)
	c.remove(t, node)
	c.expectUntouchedNode(t, node)
	c.Start(t, node)
	c.expectTakenOver(t, policy)
}
