// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// ruleLab is a network whose first node carries out the chains of a plan for its
// pods.
type ruleLab struct {
	*network.Network
	options Options
	rules   *Rules
	index   int                 // of the host's end of the pod's interface
	found   *endpoints.Endpoint // nil while it is not found
}

// noFlows: the lab has no uplinks.
func noFlows() ([]datapath.Flow, error) { return nil, nil }

func newRuleLab(t *testing.T) *ruleLab {
	t.Helper()
	mount := t.TempDir()
	require.NoError(t, unix.Mount("bpf", mount, "bpf", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(mount, 0)) })
	l := &ruleLab{
		Network: network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, LinkMbit: 200, PodsPerNode: 1}),
		options: Options{PinPath: filepath.Join(mount, "braid"), StatePath: t.TempDir(), Flows: noFlows, Log: testr.New(t)},
	}
	l.rules = Open(l.options)
	t.Cleanup(func() {
		require.NoError(t, l.Nodes[0].Do(func() error { return l.rules.Remove(context.Background()) }))
	})
	pod := l.Nodes[0].Pods[0]
	var err error
	l.index, err = l.Nodes[0].Index(pod.HostInterface)
	require.NoError(t, err)
	l.found = &endpoints.Endpoint{Path: pod.Path(), HostInterface: pod.HostInterface, HostIndex: l.index}
	return l
}

func (l *ruleLab) restart(t *testing.T) {
	t.Helper()
	require.NoError(t, l.rules.Close())
	l.rules = Open(l.options)
}

// planOf selects the first node's pod with these rules.
func planOf(rules ...v1alpha1.PlanRule) *v1alpha1.MPTCPNodePlan {
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	endpoint := v1alpha1.PlanEndpoint{UID: "client", Namespace: "team", Name: "client"}
	if len(rules) > 0 {
		endpoint.Chain = "chain"
		plan.Spec.Chains = []v1alpha1.PlanChain{{Name: "chain", Rules: rules}}
	}
	plan.Spec.Endpoints = []v1alpha1.PlanEndpoint{endpoint}
	return plan
}

func planRule(name string, actions ...v1alpha1.Action) v1alpha1.PlanRule {
	return v1alpha1.PlanRule{Policy: "ClusterMPTCPPolicy/edge", Rule: v1alpha1.Rule{Name: name, Actions: actions}}
}

var recordAll = v1alpha1.Action{Type: v1alpha1.ActionRecord}

// model is of a plan for the pod, which keeps its interface where it is not found.
func (l *ruleLab) model(t *testing.T, plan *v1alpha1.MPTCPNodePlan) *node.Model {
	t.Helper()
	blue, err := l.Nodes[0].Index("blue")
	require.NoError(t, err)
	model := &node.Model{Plan: plan, Paths: []node.Path{{Name: "blue", Interface: blue}, {Name: "absent"}}}
	if plan != nil {
		model.Endpoints = []node.Endpoint{{PlanEndpoint: &plan.Spec.Endpoints[0], Number: 1, HostInterface: l.index, Found: l.found}}
	}
	return model
}

// apply returns the report, and what it says of the pod.
func (l *ruleLab) apply(t *testing.T, plan *v1alpha1.MPTCPNodePlan) (report node.Report, status v1alpha1.EndpointStatus) {
	t.Helper()
	model := l.model(t, plan)
	require.NoError(t, l.Nodes[0].Do(func() error {
		report = l.rules.carryOut(t.Context(), model)
		return nil
	}))
	if plan != nil {
		status = report.Statuses(model)[0]
	}
	return report, status
}

// applyAll returns what is reported of the pod, when nothing is left to do.
func (l *ruleLab) applyAll(t *testing.T, plan *v1alpha1.MPTCPNodePlan) v1alpha1.EndpointStatus {
	t.Helper()
	report, status := l.apply(t, plan)
	if !report.Done() {
		t.Errorf("the report is %+v", report)
	}
	return status
}

func (l *ruleLab) transfer(t *testing.T) *traffic.Result {
	t.Helper()
	client, server := l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	ctx, cancel := context.WithCancel(t.Context())
	address := net.JoinHostPort(server.IPv4, "5001")
	listener, err := server.Listen(ctx, "tcp", address)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- traffic.Serve(ctx, listener) }()
	result, err := traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		return client.Dial(ctx, "tcp", address)
	}, traffic.Options{Duration: 600 * time.Millisecond, Verify: true})
	cancel()
	require.NoError(t, errors.Join(err, <-done))
	if result.Failed > 0 {
		t.Errorf("connections broke: %v", result.Errors)
	}
	return result
}

func (l *ruleLab) hits(t *testing.T, rule string) uint64 {
	t.Helper()
	rules, err := l.rules.Pins().Rules()
	require.NoError(t, err)
	for _, found := range rules {
		if found.Endpoint == "team/client" && found.Name == rule && found.Policy == "ClusterMPTCPPolicy/edge" {
			return found.Hits
		}
	}
	t.Fatalf("among %+v there is no rule %s of the pod", rules, rule)
	return 0
}

// restingHits are the packets that a rule has counted when for a second no more have
// come: connections that were closed still end by some.
func (l *ruleLab) restingHits(t *testing.T, rule string) uint64 {
	t.Helper()
	for hits, since := l.hits(t, rule), time.Now(); ; time.Sleep(50 * time.Millisecond) {
		now := l.hits(t, rule)
		if now == hits && time.Since(since) > time.Second {
			return hits
		}
		if now != hits {
			hits, since = now, time.Now()
		}
	}
}

// expectKept finds what a rule had counted.
func (l *ruleLab) expectKept(t *testing.T, rule string, before uint64) {
	t.Helper()
	if hits := l.hits(t, rule); hits != before {
		t.Errorf("%d packets were counted, and are %d", before, hits)
	}
}

func (l *ruleLab) expectNothing(t *testing.T) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(l.options.PinPath, chainPins)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of pins: %v", err)
	}
	if files, err := os.ReadDir(l.options.StatePath); err != nil || len(files) > 0 {
		t.Errorf("in the directory of states are %v, %v", files, err)
	}
}

func TestAPodsPacketsRunThroughTheChainOfThePlan(t *testing.T) {
	l := newRuleLab(t)
	result := l.applyAll(t, planOf(planRule("record", recordAll), planRule("report", v1alpha1.Action{Type: v1alpha1.ActionReportConnection})))
	if result.State != v1alpha1.EndpointProgrammed || result.Chain != "chain" || len(result.Rules) != 0 {
		t.Errorf("the pod is reported as %+v", result)
	}
	l.transfer(t)
	if l.hits(t, "record") == 0 {
		t.Error("the rule matched nothing")
	}
	for deadline := time.Now().Add(5 * time.Second); len(l.rules.inspection.events.Read(0).Events) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no connection was reported")
		}
	}
	if event := l.rules.inspection.events.Read(0).Events[0]; event.Endpoint != "team/client" || event.Rule != "report" {
		t.Errorf("the event is %+v", event)
	}
	result = l.applyAll(t, planOf())
	if result.Chain != "" || result.State != v1alpha1.EndpointProgrammed {
		t.Errorf("without rules the pod is reported as %+v", result)
	}
	l.expectNothing(t)
}

func TestARateIsPacedAndSaysSo(t *testing.T) {
	l := newRuleLab(t)
	limit := v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}}
	plan := planOf(planRule("slow", limit))
	l.applyAll(t, plan)
	done := make(chan *traffic.Result, 1)
	go func() { done <- l.transfer(t) }()
	var result v1alpha1.EndpointStatus
	for range 6 {
		time.Sleep(80 * time.Millisecond)
		result = l.applyAll(t, plan)
	}
	if got := (<-done).Mbit; got > 40 {
		t.Errorf("the goodput is %.1f Mbit/s", got)
	}
	if len(result.Rules) != 1 || result.Rules[0].Mechanism == "" || result.Rules[0].Message == "" {
		t.Errorf("the pod is reported as %+v", result)
	}
}

func TestRulesThatCannotBeAreReportedAndLeaveTheOldOnes(t *testing.T) {
	l := newRuleLab(t)
	l.applyAll(t, planOf(planRule("record", recordAll)))
	custom := v1alpha1.Action{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "shape"}}
	plan := planOf(planRule("record", recordAll), planRule("own", custom))
	plan.Spec.Programs = []v1alpha1.PlanProgram{{Policy: "edge", Program: v1alpha1.Program{Name: "shape", File: "shape.o"}}}
	report, result := l.apply(t, plan)
	if report.Done() || report.Err != nil {
		t.Errorf("the report is %+v", report)
	}
	if result.State != v1alpha1.EndpointFailed || result.Chain != "" || !strings.Contains(result.Message, `"shape": is not loaded on this node: `) {
		t.Errorf("the pod is reported as %+v", result)
	}
	l.transfer(t)
	if l.hits(t, "record") == 0 {
		t.Error("the old rule no longer matches")
	}
	missing := planOf(planRule("record", recordAll))
	missing.Spec.Chains = nil
	if _, result = l.apply(t, missing); result.State != v1alpha1.EndpointFailed || result.Message != "the plan has no chain chain" {
		t.Errorf("the pod is reported as %+v", result)
	}
}

func TestWhatTheKernelLacksIsSaidOfTheRule(t *testing.T) {
	l := newRuleLab(t)
	lacking := planRule("lacking",
		v1alpha1.Action{Type: v1alpha1.ActionCongestion, Congestion: &v1alpha1.Congestion{Algorithm: "warp"}},
		v1alpha1.Action{Type: v1alpha1.ActionSchedule, Schedule: &v1alpha1.Schedule{Strategy: "shortest"}},
		v1alpha1.Action{Type: v1alpha1.ActionSchedule, Schedule: &v1alpha1.Schedule{Strategy: "EarliestCompletionFirst"}})
	result := l.applyAll(t, planOf(planRule("record", recordAll), lacking))
	if result.State != v1alpha1.EndpointProgrammed || len(result.Rules) != 1 || !result.Rules[0].Failed || result.Rules[0].Name != "lacking" ||
		!strings.Contains(result.Rules[0].Message, `"warp"`) || !strings.Contains(result.Rules[0].Message, "no schedule shortest") ||
		!strings.Contains(result.Rules[0].Message, "manager: Agent") {
		t.Errorf("the pod is reported as %+v", result)
	}
}

func TestAnAgentThatRestartsKeepsChainsAndTheirNames(t *testing.T) {
	l := newRuleLab(t)
	plan := planOf(planRule("record", recordAll))
	l.applyAll(t, plan)
	l.transfer(t)
	before := l.restingHits(t, "record")
	l.restart(t)
	l.expectKept(t, "record", before)
	l.applyAll(t, plan)
	l.expectKept(t, "record", before)
	l.restart(t)
	l.applyAll(t, nil)
	l.expectNothing(t)
}

// A pod that is not found for a moment is not one without rules.
func TestAPodThatIsNotFoundKeepsItsChain(t *testing.T) {
	l := newRuleLab(t)
	plan := planOf(planRule("record", recordAll))
	l.applyAll(t, plan)
	found := l.found
	l.found = nil
	if _, status := l.apply(t, plan); status.State != v1alpha1.EndpointPending || status.Chain != "" || status.Rules != nil {
		t.Errorf("the pod is reported as %+v", status)
	}
	attached := l.rules.chains.Endpoints()
	if !slices.ContainsFunc(attached, func(a chains.Attached) bool { return a.UID == "client" }) {
		t.Errorf("the endpoints with chains are %+v", attached)
	}
	l.found = found
}

func TestRemovalOfRulesLeavesNothing(t *testing.T) {
	l := newRuleLab(t)
	limit := v1alpha1.Action{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}}
	l.applyAll(t, planOf(planRule("slow", limit)))
	l.restart(t)
	require.NoError(t, l.Nodes[0].Do(func() error { return l.rules.Remove(context.Background()) }))
	l.expectNothing(t)
	require.NoError(t, l.Nodes[0].Do(func() error { return l.rules.Remove(context.Background()) })) // it may be repeated
}

// The numbers of endpoints begin anew with the maps: what was known by the old ones
// must not keep older connections from being known.
func TestConnectionsAreKnownAgainAfterAllRulesWereGone(t *testing.T) {
	l := newRuleLab(t)
	client, server := l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	listener, err := server.Listen(t.Context(), "tcp", net.JoinHostPort(server.IPv4, "5002"))
	require.NoError(t, err)
	defer listener.Close()
	connection, err := client.Dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	defer connection.Close()
	for range 2 {
		l.applyAll(t, planOf(planRule("record", recordAll)))
		subflows, err := l.rules.chains.Subflows()
		require.NoError(t, err)
		if len(subflows) != 1 || subflows[0].Record.Token == 0 {
			t.Errorf("the connection is known as %+v", subflows)
		}
		l.applyAll(t, planOf())
	}
}

func TestNICsHaveTheProgramOfRulesThatDropWhileItIsAskedFor(t *testing.T) {
	l := newRuleLab(t)
	dropAll := planOf(planRule("drop", v1alpha1.Action{Type: v1alpha1.ActionDrop}))
	shown := func() *v1alpha1.NodePathXDP {
		status := v1alpha1.NodePath{Name: "blue", Interface: "blue"}
		l.rules.AtNIC().DescribePath(&status)
		return status.XDP
	}
	l.applyAll(t, dropAll)
	require.Nil(t, shown(), "it is off by default")
	told := 0
	l.options.NativeXDP, l.options.Wake = true, func() { told++ }
	l.restart(t)
	l.applyAll(t, dropAll)
	require.Equal(t, &v1alpha1.NodePathXDP{State: v1alpha1.XDPNative}, shown())
	l.applyAll(t, dropAll)
	require.Equal(t, 1, told, "the node's status is to be published anew, once")
	require.NoError(t, l.Nodes[0].Do(func() error { return l.rules.Remove(t.Context()) }))
	require.NoDirExists(t, filepath.Join(l.options.PinPath, "at_nic"))
}
