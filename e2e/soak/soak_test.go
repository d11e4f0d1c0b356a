// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

const (
	// durationVariable says for how long it goes on; inCI is for how long without it.
	durationVariable = "BRAID_SOAK"
	inCI             = 2 * time.Minute
	// leastCycles are made however long they take.
	leastCycles = 2
	// closing is what is to be done at the end.
	closing = 20 * time.Second
	// quiet is how long the victim's goodput is measured without the crowd.
	quiet = 4 * time.Second
	// patience is until timers of the kernel, and of agents, have noticed what is gone.
	patience = 30 * time.Second
)

// What the soak may come to. In a few cycles the garbage collector shows more than a leak
// does, and the crowd shares the machine's processors.
const (
	mostGrowthPct      = 10.
	mostGrowthOfFewPct = 50.
	few                = 10
	leastGoodputPct    = 70.
)

// guardrails give the crowd's pods ceilings, so that there is a guard to leak.
const guardrails = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPGuardrail
metadata:
  name: crowd
spec:
  namespaceSelector:
    matchLabels:
      kubernetes.io/metadata.name: crowd
  podSelector: {}
  maxPodRate: 20M
`

// soak is a cluster that is worn out.
type soak struct {
	*testlab.Cluster
	victim *testlab.Stream
	policy *v1alpha1.MPTCPPolicy // of the crowd
	added  int
	// slowest is how long new pods of the crowd took at most until they were programmed.
	slowest time.Duration
	dead    map[netip.Addr]bool
	// memory of the processes that live as long as the soak, after each cycle.
	memory []map[string]float64
	// agentMiB is the most that an agent had of memory and maps.
	agentMiB float64
}

func TestNothingIsLeftAfterPodsThatDieFloodsAndRestarts(t *testing.T) {
	duration, err := time.ParseDuration(cmp.Or(os.Getenv(durationVariable), inCI.String()))
	if err != nil {
		t.Fatal(err)
	}
	end := time.Now().Add(duration)
	s := prepare(t)
	s.cycle(t, nil) // everything has been there once
	before := s.inventory(t)
	alone := s.goodput(t, quiet)
	from, since := s.arrived(t), time.Now()
	c := s.gather(t)
	for took := time.Duration(0); len(s.memory) < leastCycles || time.Now().Add(took+closing).Before(end); {
		begin := time.Now()
		s.cycle(t, c)
		took = time.Since(begin)
		s.memory = append(s.memory, s.residentMemory(t))
		s.agentMiB = max(s.agentMiB, s.charged(t, s.Agents["node2"]))
		t.Logf("cycle %d took %v; resident KiB: %v", len(s.memory), took.Round(time.Second/10), s.memory[len(s.memory)-1])
	}
	s.timeNewPods(t)
	c.leave(t)
	during := mbit(s.arrived(t)-from, time.Since(since))
	alone = (alone + s.goodput(t, quiet)) / 2
	s.expectNothingLeft(t, before)
	s.judge(t, 100*during/alone)
}

// judge says what it came to.
func (s *soak) judge(t *testing.T, goodputPct float64) {
	t.Helper()
	growth := s.growthPct(t)
	testutil.Figure(t, "soak.cycles", "", float64(len(s.memory)))
	testutil.Figure(t, "soak.connections", "", float64(connections))
	testutil.Figure(t, "soak.rss_growth_pct", "%", growth)
	testutil.Figure(t, "soak.others_goodput_pct", "%", goodputPct)
	testutil.Figure(t, "soak.programmed_ms", "ms", float64(s.slowest.Milliseconds()))
	testutil.Figure(t, "soak.agent_memory_mib", "MiB", s.agentMiB)
	if most := agentLimitMiB(t); s.agentMiB > most {
		t.Errorf("an agent had %.0f MiB of memory and maps, and the chart gives it %.0f", s.agentMiB, most)
	}
	most := mostGrowthPct
	if len(s.memory) < few {
		most = mostGrowthOfFewPct
	}
	if growth > most {
		t.Errorf("the resident memory grew by %.1f %%: %v", growth, s.memory)
	}
	if goodputPct < leastGoodputPct {
		t.Errorf("%.1f %% of the victim's goodput were left", goodputPct)
	}
	subflows, err := traffic.Subflows(s.victim.Connection)
	if err != nil || len(subflows) != len(s.Paths) {
		t.Errorf("the victim's connection has %d subflows (%v)", len(subflows), err)
	}
}

// prepare gives both tenants their policies, and starts the victim's connection.
func prepare(t *testing.T) *soak {
	t.Helper()
	s := &soak{Cluster: shared.Use(t), dead: map[netip.Addr]bool{}}
	s.CreatePaths(t)
	shop := testlab.NewPolicy("shop", "client", "server")
	shop.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	s.policy = testlab.NewPolicy(crowd, "crowd")
	s.policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	// Those that carry nothing keep one subflow, as connections of the kind do.
	after := resource.MustParse("64Ki")
	s.policy.Spec.Subflows.OpenAfter = &v1alpha1.OpenAfter{Bytes: &after}
	s.policy.Spec.Rules = []v1alpha1.Rule{{Name: "record", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}}}
	s.Create(t, shop, s.policy)
	s.Apply(t, guardrails)
	s.WaitProgrammed(t, shop, 2)
	s.WaitProgrammed(t, s.policy, resident)
	s.answerMortals(t)
	s.victim = testlab.StartStream(t, s.Network.Pod("client"), s.Network.Pod("server"))
	s.WaitFor(t, "the victim has all subflows", 10*time.Second, func(context.Context) error {
		subflows, err := traffic.Subflows(s.victim.Connection)
		if err == nil && len(subflows) != len(s.Paths) {
			err = fmt.Errorf("it has %d", len(subflows))
		}
		return err
	})
	return s
}

// cycle is everything once: pods begin and die, agents are started again, tables are
// flooded, and a part of the crowd goes and comes back.
func (s *soak) cycle(t *testing.T, c *gathering) {
	t.Helper()
	dying := s.addDying(t)
	node1, node3 := s.Network.Nodes[0], s.Network.Nodes[2]
	s.Kill(t, node1)
	s.floodMaps(t)
	s.die(t, dying)
	s.Start(t, node1)
	if err := s.Agents[node3.NodeName()].Stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	s.Start(t, node3)
	if c != nil {
		c.renew(t)
	}
	s.awaitProgrammed(t, resident)
}

// awaitProgrammed is patient: what a crowd on the same node costs is a figure.
func (s *soak) awaitProgrammed(t *testing.T, pods int) {
	t.Helper()
	took := s.WaitFor(t, "the crowd's policy is programmed", 2*patience, func(ctx context.Context) error { return s.Programmed(ctx, s.policy, pods) })
	s.slowest = max(s.slowest, took)
}

// floodMaps has a stranger send what fills the tables of handshakes and of joins.
func (s *soak) floodMaps(t *testing.T) {
	t.Helper()
	const each, burst = 20_000, 500
	to, stranger := s.Network.Pod("listener"), s.Network.Pod("stranger")
	for first := 0; first < each; first += burst {
		var segments []testlab.Forgery
		for i := first; i < first+burst; i++ {
			segment := testlab.Forgery{
				From: testlab.AddrPort(stranger.IPv4, uint16(2000+i)), To: testlab.AddrPort(to.IPv4, 9), Flags: testlab.SYN, Options: testlab.Capable,
			}
			if i%10 == 0 {
				segment.Options = testlab.Joining(uint32(i))
			}
			segments = append(segments, segment)
		}
		testlab.Forge(t, stranger, segments...)
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *soak) arrived(t *testing.T) int {
	t.Helper()
	bytes, err := s.victim.Arrived()
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}

func (s *soak) goodput(t *testing.T, duration time.Duration) float64 {
	t.Helper()
	before, begin := s.arrived(t), time.Now()
	time.Sleep(duration)
	return mbit(s.arrived(t)-before, time.Since(begin))
}

func mbit(bytes int, took time.Duration) float64 { return float64(bytes) * 8 / 1e6 / took.Seconds() }
