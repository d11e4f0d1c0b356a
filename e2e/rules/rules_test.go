// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/traffic"
)

// ruledTime leaves time to load the programs, which the kernel verifies for seconds.
const ruledTime = 15 * time.Second

// Rules come, change, trade places and go while a connection runs, which notices
// nothing of it.
func TestRulesChangeWhileTrafficRuns(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	sent, received := shop.Counting("sent", shop.Directed(v1alpha1.DirectionFromEndpoint)), shop.Counting("received", shop.Directed(v1alpha1.DirectionToEndpoint))
	c.Spread(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, ruledTime))
	r.SleepUntil(1500 * time.Millisecond)
	before, err := c.podPrograms()
	require.NoError(t, err)
	t.Logf("rules were programmed after %v", c.SetRules(t, policy, sent))
	time.Sleep(time.Second)
	first := c.Hits(t, "client")
	if first["sent"] == 0 || len(first) != 1 {
		t.Errorf("the rule's hits are %v", first)
	}
	t.Logf("more rules were programmed after %v", c.SetRules(t, policy, received, sent))
	time.Sleep(time.Second)
	second := c.Hits(t, "client")
	if second["sent"] <= first["sent"] || second["received"] == 0 {
		t.Errorf("the rules' hits were %v and are %v", first, second)
	}
	t.Logf("no rules were programmed after %v", c.SetRules(t, policy))
	c.expectPrograms(t, before)
	r.Finish(t)
	stop := r.LongestStop(testlab.Warmup, ruledTime)
	t.Logf("nothing arrived for %v at most", stop)
	if stop > shop.Noticeable {
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
			found, err := shop.ProgramsOn(index)
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
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	policy.Spec.Rules = []v1alpha1.Rule{shop.Limiting("slow", "10M")}
	c.Spread(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, 6*time.Second))
	r.SleepUntil(3 * time.Second)
	c.SetRules(t, policy)
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
