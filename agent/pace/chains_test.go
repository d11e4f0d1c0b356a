// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node/nodetest"
	agent "braid.dev/braid/agent/pace"
	"braid.dev/braid/api/v1alpha1"
	packets "braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/pace"
	"braid.dev/braid/internal/testutil"
)

// chainsLab is a lab whose client has a chain, as packets run through it.
type chainsLab struct {
	*lab
	chains *chains.Chains
}

func newChainsLab(t *testing.T) *chainsLab {
	t.Helper()
	l := &chainsLab{lab: newLab(t)}
	pins := filepath.Join(filepath.Dir(l.directory), "endpoints")
	l.directory = chains.Directory(pins)
	l.chains = chains.Open(chains.Options{PinPath: pins, SubflowEntries: 4096, Log: logr.Discard()})
	l.pacer = agent.Open(l.options(t))
	t.Cleanup(func() {
		require.NoError(t, l.pacer.Remove())
		require.NoError(t, l.Nodes[0].Do(func() error { return l.chains.Remove(context.Background()) }))
	})
	return l
}

// follow gives the client these rules, as the agent does.
func (l *chainsLab) follow(t *testing.T, rules ...v1alpha1.PlanRule) {
	t.Helper()
	index, err := l.Nodes[0].Index(l.client.HostInterface)
	require.NoError(t, err)
	require.NoError(t, l.Nodes[0].Do(func() error {
		return nodetest.Failures(l.chains.Apply(t.Context(), nodetest.Model(nodetest.Pod{UID: "pod", Name: "team/pod", Interface: index, Rules: rules})))
	}))
	of, asks, err := agent.Of(l.chains.Endpoints()[0].Number, l.client.Path(), rules, nil)
	require.NoError(t, err)
	if !asks {
		require.NoError(t, l.pacer.Apply(nil))
		return
	}
	require.NoError(t, l.pacer.Apply([]agent.Endpoint{of}))
}

func rule(action v1alpha1.Action) v1alpha1.PlanRule {
	return v1alpha1.PlanRule{
		Policy: "MPTCPPolicy/team/test",
		Rule:   v1alpha1.Rule{Name: "test", Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}}, Actions: []v1alpha1.Action{action}},
	}
}

func rateLimit(rate string, per v1alpha1.RateLimitScope) v1alpha1.PlanRule {
	return rule(v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse(rate), Per: per}})
}

func congestion(algorithm string) v1alpha1.PlanRule {
	return rule(v1alpha1.Action{Type: v1alpha1.ActionCongestion, Congestion: &v1alpha1.Congestion{Algorithm: algorithm}})
}

func TestRulesPaceNewAndOldSubflowsAndChangeAtOnce(t *testing.T) {
	for _, version := range []int{4, 6} {
		l := newChainsLab(t)
		l.allow(t, version, 2)
		l.serve(t, l.server.Address(version))
		l.run(t)
		older := l.dial(t, l.server.Address(version))
		l.awaitSubflows(t, 2)
		l.follow(t, rateLimit("20M", v1alpha1.RateLimitPerSubflow))
		newer := l.dial(t, l.server.Address(version))
		l.awaitSubflows(t, 4)
		send(t, older)
		send(t, newer)
		time.Sleep(500 * time.Millisecond)
		expectRates(t, "the subflows", l.client, 2*time.Second, each(20))
		l.follow(t, rateLimit("50M", v1alpha1.RateLimitPerSubflow))
		time.Sleep(500 * time.Millisecond)
		expectRates(t, "after the change", l.client, 2*time.Second, each(50))
		l.follow(t, rule(v1alpha1.Action{Type: v1alpha1.ActionRecord}))
		testutil.Eventually(t, 5*time.Second, "the paces are lifted", func() bool { return all(paces(t, l.client), "") })
	}
}

// TestRulesPaceANewSubflowBeforeItSends matters beyond the first bytes: MPTCP's
// scheduler goes on for long by the pace that a subflow had when it was new.
func TestRulesPaceANewSubflowBeforeItSends(t *testing.T) {
	l := newChainsLab(t)
	l.allow(t, 4, 3)
	l.serve(t, l.server.IPv4)
	l.follow(t, rateLimit("20M", v1alpha1.RateLimitPerSubflow))
	l.dial(t, l.server.IPv4)
	for _, s := range l.awaitSubflows(t, 3) {
		if s.pace != "20000000" {
			t.Errorf("%s is paced at %q after %d bytes", s.local, s.pace, s.sent)
		}
	}
}

func TestRulesShareARate(t *testing.T) {
	for _, per := range []v1alpha1.RateLimitScope{v1alpha1.RateLimitPerConnection, v1alpha1.RateLimitPerEndpoint} {
		l := newChainsLab(t)
		l.allow(t, 4, 3)
		l.serve(t, l.server.IPv4)
		l.run(t)
		l.follow(t, rateLimit("60M", per))
		send(t, l.dial(t, l.server.IPv4))
		send(t, l.dial(t, l.server.IPv4))
		l.awaitSubflows(t, 6)
		time.Sleep(time.Second)
		wanted := map[v1alpha1.RateLimitScope]float64{v1alpha1.RateLimitPerConnection: 120, v1alpha1.RateLimitPerEndpoint: 60}[per]
		for range 3 {
			expectRates(t, string(per), l.client, time.Second, together(wanted))
		}
	}
}

func TestRulesChooseTheCongestionControl(t *testing.T) {
	l := newChainsLab(t)
	l.serve(t, l.server.IPv4)
	connection := l.dial(t, l.server.IPv4)
	send(t, connection)
	l.run(t)
	l.follow(t, congestion("bbr"))
	testutil.Eventually(t, 5*time.Second, "an older subflow has it", func() bool { return sockets(t, l.client)[0].congestion == "bbr" })
	l.dial(t, l.server.IPv4)
	for _, s := range l.awaitSubflows(t, 2) {
		if s.congestion != "bbr" {
			t.Errorf("%s has congestion control %s", s.local, s.congestion)
		}
	}
}

// A tenant's rule decides where no rule of the cluster does.
func TestATenantsRuleDoesNotReplaceTheClustersCongestionControl(t *testing.T) {
	const available = "cubic"
	cluster, tenant := congestion(available), congestion("reno")
	cluster.Policy = "ClusterMPTCPPolicy/all"
	tests := []struct {
		name   string
		rules  []v1alpha1.PlanRule
		chosen string
	}{
		{"both", []v1alpha1.PlanRule{cluster, tenant}, available},
		{"the tenant alone", []v1alpha1.PlanRule{tenant}, "reno"},
	}
	l := newChainsLab(t)
	l.serve(t, l.server.IPv4)
	send(t, l.dial(t, l.server.IPv4))
	l.run(t)
	for _, test := range tests {
		l.follow(t, test.rules...)
		testutil.Eventually(t, 5*time.Second, test.name, func() bool { return sockets(t, l.client)[0].congestion == test.chosen })
	}
}

func TestOtherRulesAreAnotherRevision(t *testing.T) {
	revision := func(rules ...v1alpha1.PlanRule) uint64 {
		of, _, err := agent.Of(1, "", rules, nil)
		require.NoError(t, err)
		return of.Revision
	}
	slow, again, fast := rateLimit("1M", ""), rateLimit("1M", ""), rateLimit("2M", "")
	if revision(slow) != revision(again) || revision(slow) == revision(fast) || revision(slow, fast) == revision(fast, slow) {
		t.Error("revisions do not tell chains apart")
	}
}

func TestACongestionControlThatTheKernelHasNotIsAnError(t *testing.T) {
	rules := []v1alpha1.PlanRule{congestion("magic"), rateLimit("1M", "")}
	of, asks, err := agent.Of(3, "", rules, nil)
	if err == nil || !strings.Contains(err.Error(), "magic") || !strings.Contains(err.Error(), "rule test") {
		t.Errorf("the error is %v", err)
	}
	if !asks || len(of.Congestions) > 0 || of.SharedLimits || of.Number != 3 {
		t.Errorf("the other rule asks for %+v (%t)", of, asks)
	}
}

func TestWhatAChainAsksOfSockets(t *testing.T) {
	tests := []struct {
		name         string
		rule         v1alpha1.PlanRule
		asks, shared bool
	}{
		{"a rate", rateLimit("1M", v1alpha1.RateLimitPerSubflow), true, false},
		{"a shared rate", rateLimit("1M", v1alpha1.RateLimitPerEndpoint), true, true},
		{"a congestion control", congestion("reno"), true, false},
		{"nothing", rule(v1alpha1.Action{Type: v1alpha1.ActionRecord}), false, false},
		{"nothing when packets are policed", rule(v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{
			Rate: resource.MustParse("1M"), Mechanism: v1alpha1.RateLimitPolice, Per: v1alpha1.RateLimitPerEndpoint,
		}}), false, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			of, asks, err := agent.Of(1, "", []v1alpha1.PlanRule{test.rule}, nil)
			require.NoError(t, err)
			if asks != test.asks || of.SharedLimits != test.shared {
				t.Errorf("asks %t, shared %t", asks, of.SharedLimits)
			}
		})
	}
}

// TestThePacketProgramsKeepTheSameRecords fails when their layout was changed and
// the programs for sockets were not compiled anew.
func TestThePacketProgramsKeepTheSameRecords(t *testing.T) {
	theirs, err := packets.LoadFromEndpoint()
	require.NoError(t, err)
	ours, err := pace.LoadPace()
	require.NoError(t, err)
	a, b := theirs.Maps["subflows"], ours.Maps["subflows"]
	if a.KeySize != b.KeySize || a.ValueSize != b.ValueSize {
		t.Fatalf("keys of %d and %d bytes, records of %d and %d", a.KeySize, b.KeySize, a.ValueSize, b.ValueSize)
	}
	for _, sides := range [][2]reflect.Type{
		{reflect.TypeFor[packets.FromEndpointSubflowKey](), reflect.TypeFor[pace.PaceSubflowKey]()},
		{reflect.TypeFor[packets.FromEndpointSubflow](), reflect.TypeFor[pace.PaceSubflow]()},
	} {
		expectSameFields(t, sides[0], sides[1])
	}
}

func expectSameFields(t *testing.T, a, b reflect.Type) {
	t.Helper()
	if a.NumField() != b.NumField() {
		t.Fatalf("%s has %d fields and %s has %d", a, a.NumField(), b, b.NumField())
	}
	for i := range a.NumField() {
		if x, y := a.Field(i), b.Field(i); x.Name != y.Name || x.Offset != y.Offset || x.Type.Size() != y.Type.Size() {
			t.Errorf("%s.%s at %d is %s.%s at %d", a, x.Name, x.Offset, b, y.Name, y.Offset)
		}
	}
}
