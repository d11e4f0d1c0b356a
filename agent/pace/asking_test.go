// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/node/nodetest"
	agent "braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/transport"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// asking is a lab whose server receives, and asks the client by rules.
type asking struct {
	*chainsLab
	part *transport.Part
	stop func() // has the part's agent die
}

func newAsking(t *testing.T) *asking {
	t.Helper()
	a := &asking{chainsLab: newChainsLab(t)}
	a.part, a.stop = a.openTransport(t)
	a.serve(t, a.server.IPv4)
	return a
}

func accepting() *v1alpha1.Transport {
	return &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{
		From: []v1alpha1.CIDR{"0.0.0.0/0"}, MinRate: resource.NewQuantity(1e6, resource.DecimalSI), CongestionControls: []string{"reno", "cubic"},
	}}
}

// govern gives the server these rules and requests, and the client what it accepts.
func (a *asking) govern(t *testing.T, accepted, requested *v1alpha1.Transport, rules ...v1alpha1.PlanRule) {
	t.Helper()
	model := nodetest.Model(
		nodetest.Pod{UID: "client", Namespace: a.client.Path()}, nodetest.Pod{UID: "server", Namespace: a.server.Path(), Rules: rules},
	)
	model.Endpoints[0].Transport, model.Endpoints[1].Transport = accepted, requested
	model.Endpoints[0].Subflows.Manager = v1alpha1.SubflowManagerAgent
	require.NoError(t, nodetest.Failures(a.part.Apply(t.Context(), model)))
	if len(rules) == 0 {
		require.NoError(t, a.pacer.Apply(nil))
		return
	}
	servers := *a.lab
	servers.client = a.server
	(&chainsLab{lab: &servers, chains: a.chains}).follow(t, rules...)
}

func atPeer(match v1alpha1.Selectors, action v1alpha1.Action) v1alpha1.PlanRule {
	action.At = v1alpha1.ActionAtPeer
	asked := rule(action)
	asked.Match = &v1alpha1.Match{Selectors: match}
	return asked
}

func received() v1alpha1.Selectors {
	return v1alpha1.Selectors{Direction: v1alpha1.DirectionToEndpoint}
}

func peerRate(rate string) v1alpha1.PlanRule {
	return atPeer(received(), v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse(rate)}})
}

func peerCongestion(algorithm string) v1alpha1.PlanRule {
	return atPeer(received(), v1alpha1.Action{Type: v1alpha1.ActionCongestion, Congestion: &v1alpha1.Congestion{Algorithm: algorithm}})
}

func (a *asking) isPaced(t *testing.T, at string) {
	t.Helper()
	testutil.Retry(t, 20*time.Second, func() error {
		if found := paces(t, a.client); !all(found, at) {
			return fmt.Errorf("the peer's sockets are paced at %q, not %q", found, at)
		}
		return nil
	})
}

func (a *asking) uses(t *testing.T, algorithm string) {
	t.Helper()
	testutil.Eventually(t, 20*time.Second, "the peer's socket uses "+algorithm, func() bool {
		found := sockets(t, a.client)
		return len(found) > 0 && found[0].congestion == algorithm
	})
}

func TestARuleAsksThePeerForARateAndTakesItBack(t *testing.T) {
	a := newAsking(t)
	send(t, a.dial(t, a.server.IPv4))
	a.govern(t, accepting(), nil, peerRate("20M"))
	a.isPaced(t, "20000000")
	expectRates(t, "what the rule asks for", a.client, time.Second, each(20))
	a.govern(t, accepting(), nil, peerRate("40M"), peerRate("10M")) // the least holds
	a.isPaced(t, "10000000")
	a.govern(t, accepting(), nil, peerCongestion("reno"))
	a.isPaced(t, "")
	a.govern(t, accepting(), nil)
	a.isPaced(t, "")
}

func TestOfARulesRateAndThePolicysTheLesserIsAskedFor(t *testing.T) {
	a := newAsking(t)
	send(t, a.dial(t, a.server.IPv4))
	requested := &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{
		CongestionControl: "reno", Rates: []v1alpha1.PathRate{{Path: "net1", Rate: resource.MustParse("30M")}},
	}}
	a.govern(t, accepting(), requested, peerRate("50M"))
	a.isPaced(t, "30000000")
	a.uses(t, "reno")
	a.govern(t, accepting(), requested, peerRate("20M"), peerCongestion("cubic")) // the rule's goes before
	a.isPaced(t, "20000000")
	a.uses(t, "cubic")
	a.govern(t, accepting(), requested)
	a.isPaced(t, "30000000")
	a.uses(t, "reno")
}

func TestATenantsRuleDoesNotAskForAnotherCongestionControlThanTheClusters(t *testing.T) {
	a := newAsking(t)
	binding := peerCongestion("reno")
	binding.Policy = "ClusterMPTCPPolicy/edge"
	a.govern(t, accepting(), nil, binding, peerCongestion("cubic"))
	send(t, a.dial(t, a.server.IPv4))
	a.uses(t, "reno")
}

// What a rule asks of the peer's agent is noted there, and not once it is asked no more.
func TestARuleAsksThePeerForAStrategyAndTakesItBack(t *testing.T) {
	a := newAsking(t)
	accepted := accepting()
	accepted.Accept.Schedules = []string{v1alpha1.StrategyEarliestCompletionFirst}
	strategy := atPeer(received(), v1alpha1.Action{Type: v1alpha1.ActionSchedule, Schedule: &v1alpha1.Schedule{Strategy: v1alpha1.StrategyEarliestCompletionFirst}})
	a.govern(t, accepted, nil, strategy)
	send(t, a.dial(t, a.server.IPv4))
	testutil.Eventually(t, 20*time.Second, "the peer's agent is to schedule the connection", func() bool { return a.strategies.Load() == 1 })
	a.govern(t, accepted, nil, peerRate("40M"))
	testutil.Eventually(t, 30*time.Second, "it is not any more", func() bool { return a.strategies.Load() == 0 })
}

// What is asked goes on, and reaches new connections, while no agent runs.
func TestARuleAsksWithoutAnAgent(t *testing.T) {
	a := newAsking(t)
	a.govern(t, accepting(), nil, peerRate("20M"))
	a.stop()
	send(t, a.dial(t, a.server.IPv4))
	a.isPaced(t, "20000000")
	time.Sleep(12 * time.Second) // more than after which it lapses where nobody asks
	a.isPaced(t, "20000000")
}

func TestAPeerThatDoesNotAcceptWhatARuleAsksForGoesOnAsItIs(t *testing.T) {
	a := newAsking(t)
	others := accepting()
	others.Accept.From = []v1alpha1.CIDR{"192.0.2.0/24"}
	send(t, a.dial(t, a.server.IPv4))
	for _, accepted := range []*v1alpha1.Transport{nil, others} {
		a.govern(t, accepted, nil, peerRate("20M"))
		time.Sleep(4 * time.Second)
		a.isPaced(t, "")
	}
	bounded := accepting()
	bounded.Accept.MinRate = resource.NewQuantity(50e6, resource.DecimalSI)
	a.govern(t, bounded, nil, peerRate("20M"))
	a.isPaced(t, "50000000")
}

// One subflow of two is asked for a rate: the other one keeps its own.
func TestARuleAsksForTheSubflowsThatItMatchesAlone(t *testing.T) {
	a := newAsking(t)
	a.allow(t, 4, 2)
	source := v1alpha1.Selectors{Source: &v1alpha1.Side{CIDR: "10.244.9.1/32"}}
	a.govern(t, accepting(), nil, atPeer(source, v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}}))
	send(t, a.dial(t, a.server.IPv4))
	a.awaitSubflows(t, 2)
	testutil.Eventually(t, 20*time.Second, "one of two subflows is paced", func() bool {
		for _, s := range sockets(t, a.client) {
			if wanted := map[bool]string{true: "20000000"}[s.local.Addr().String() == "10.244.9.1"]; s.pace != wanted {
				return false
			}
		}
		return true
	})
}

func TestWhatAChainAsksOfPeers(t *testing.T) {
	local := rateLimit("1M", v1alpha1.RateLimitPerEndpoint)
	of, asks, err := agent.Of(1, "", []v1alpha1.PlanRule{local, peerRate("20M"), peerCongestion("magic")}, nil)
	require.NoError(t, err) // it is for the peer's kernel to know magic
	if !asks || len(of.Congestions) > 0 || len(of.Requests) != 2 || of.Requests[1].Rate == 0 || of.Requests[2].CongestionControl == 0 {
		t.Errorf("the chain asks for %+v (%t)", of, asks)
	}
	if agent.AsksPeers([]v1alpha1.PlanRule{local}) || !agent.AsksPeers([]v1alpha1.PlanRule{local, peerRate("1M")}) {
		t.Error("it is not known whether rules ask peers")
	}
}

// A limit of what is received is kept by the sender's socket where that accepts, and by drops
// alone where it does not.
func TestALimitOnWhatAPodReceivesIsAskedForTooAndDropsNothingWhereItIsAccepted(t *testing.T) {
	limited := rule(v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}})
	limited.Match = &v1alpha1.Match{Selectors: received()}
	a := newAsking(t)
	a.govern(t, nil, nil, limited)
	send(t, a.dial(t, a.server.IPv4))
	refused := a.sentAgain(t, "")
	a.govern(t, accepting(), nil, limited)
	accepted := a.sentAgain(t, "20000000")
	t.Logf("bytes that were sent again in 4 s: %d where the limit is accepted, %d where it is not", accepted, refused)
	require.Less(t, 20*accepted, refused)
	expectRates(t, "what the limit lets pass", a.client, time.Second, each(20))
}

// sentAgain is what the client sends again in 4 s, some time after its sockets are paced at this
// rate: what came before is out of the way then.
func (a *asking) sentAgain(t *testing.T, paced string) uint64 {
	t.Helper()
	a.isPaced(t, paced)
	time.Sleep(3 * time.Second)
	before := retransmitted(t, a.client)
	time.Sleep(4 * time.Second)
	return retransmitted(t, a.client) - before
}

// retransmitted is what a pod's sockets have sent again, in bytes.
func retransmitted(t *testing.T, pod *network.Pod) (sum uint64) {
	t.Helper()
	out, err := pod.Run("ss", "-tinHO", "state", "established")
	require.NoError(t, err)
	for line := range strings.Lines(out) {
		sum += number(retransmittedPattern, line)
	}
	return sum
}

var retransmittedPattern = regexp.MustCompile(`bytes_retrans:(\d+)`)

func TestWhichLimitsAreAskedForToo(t *testing.T) {
	limit := func(change func(*v1alpha1.PlanRule, *v1alpha1.RateLimit)) v1alpha1.PlanRule {
		of := rule(v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}})
		of.Match = &v1alpha1.Match{Selectors: received()}
		change(&of, of.Actions[0].RateLimit)
		return of
	}
	for name, c := range map[string]struct {
		rule  v1alpha1.PlanRule
		asked bool
	}{
		"of what is received": {limit(func(*v1alpha1.PlanRule, *v1alpha1.RateLimit) {}), true},
		"of what is sent": {limit(func(of *v1alpha1.PlanRule, _ *v1alpha1.RateLimit) {
			of.Match.Direction = v1alpha1.DirectionFromEndpoint
		}), false},
		"of both": {limit(func(of *v1alpha1.PlanRule, _ *v1alpha1.RateLimit) { of.Match = nil }), false},
		"of a connection": {limit(func(_ *v1alpha1.PlanRule, l *v1alpha1.RateLimit) {
			l.Per = v1alpha1.RateLimitPerConnection
		}), false},
		"of another mechanism": {limit(func(_ *v1alpha1.PlanRule, l *v1alpha1.RateLimit) {
			l.Mechanism = v1alpha1.RateLimitPolice
		}), false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.asked, agent.AsksPeers([]v1alpha1.PlanRule{c.rule}))
			require.False(t, c.rule.ActsAtPeer())
		})
	}
}
