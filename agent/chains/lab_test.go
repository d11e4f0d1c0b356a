// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// lab is a network whose first node runs chains for its pods.
type lab struct {
	*network.Network
	options Options
	chains  *Chains
}

func newLab(t *testing.T, pods int, options Options) *lab {
	t.Helper()
	options.PinPath = filepath.Join(testutil.BPFFS(t), "endpoints")
	options.SubflowEntries = 4096
	l := &lab{options: options}
	l.Network = network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, LinkMbit: 200, PodsPerNode: pods})
	l.chains = Open(options)
	t.Cleanup(func() {
		require.NoError(t, l.Nodes[0].Do(func() error { return l.chains.Remove(context.Background()) }))
	})
	return l
}

// restart gives the node a new agent over the old one's pins.
func (l *lab) restart(t *testing.T) {
	t.Helper()
	require.NoError(t, l.chains.Close())
	l.chains = Open(l.options)
}

// model gives the pods of the first node these rules, each list to one pod.
func (l *lab) model(t *testing.T, rules ...[]v1alpha1.PlanRule) *node.Model {
	t.Helper()
	blue, err := l.Nodes[0].Index("blue")
	require.NoError(t, err)
	var pods []nodetest.Pod
	for i, rules := range rules {
		if len(rules) > 0 {
			pods = append(pods, nodetest.Pod{UID: uid(i), Name: fmt.Sprintf("team/pod%d", i), Number: uint32(i + 1), Interface: l.index(t, i), Rules: rules})
		}
	}
	model := nodetest.Model(pods...)
	model.Paths = []node.Path{{Name: "blue", Interface: blue}}
	return model
}

func uid(pod int) types.UID {
	return types.UID(fmt.Sprintf("9c858901-8a57-4791-81fe-4c455b099b%02d", pod))
}

func (l *lab) index(t *testing.T, pod int) int {
	t.Helper()
	index, err := l.Nodes[0].Index(l.Nodes[0].Pods[pod].HostInterface)
	require.NoError(t, err)
	return index
}

func (l *lab) half() *half { return l.chains.loaded.Value }

// tryApply returns the failures of single endpoints.
func (l *lab) tryApply(t *testing.T, model *node.Model) failures {
	t.Helper()
	failed := failures{}
	require.NoError(t, l.Nodes[0].Do(func() error {
		report := l.chains.Apply(t.Context(), model)
		for uid, of := range report.Endpoints {
			failed.add(uid, of.Failed)
		}
		return report.Err
	}))
	return failed
}

func (l *lab) apply(t *testing.T, rules ...[]v1alpha1.PlanRule) {
	t.Helper()
	for uid, err := range l.tryApply(t, l.model(t, rules...)) {
		t.Fatalf("endpoint %s: %v", uid, err)
	}
}

// recording are rules that count packets, by their names.
func recording(names ...string) (rules []v1alpha1.PlanRule) {
	for _, name := range names {
		rule := v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{Name: name, Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}}}
		switch name {
		case "sent":
			rule.Match = &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}}
		case "received":
			rule.Match = &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionToEndpoint}}
		case "syn":
			rule.Match = &v1alpha1.Match{Selectors: v1alpha1.Selectors{PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketSYN}}}
		}
		rules = append(rules, rule)
	}
	return rules
}

// uses are the counters of a pod's rules, by name.
func (l *lab) uses(t *testing.T, pod int) map[string]RuleCounters {
	uses := map[string]RuleCounters{}
	t.Helper()
	all, err := l.chains.Counters(uid(pod))
	require.NoError(t, err)
	for _, use := range all {
		uses[use.Name] = use.RuleCounters
	}
	return uses
}

const serverPort = "5001"

// serve answers transfers in a pod until the test ends.
func serve(t *testing.T, pod *network.Pod) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := pod.Listen(ctx, "tcp", net.JoinHostPort(pod.IPv4, serverPort))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- traffic.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serving transfers: %v", err)
		}
	})
}

// running is a transfer that is under way.
type running struct {
	result *traffic.Result
	err    error
	done   chan struct{}
}

func start(t *testing.T, client, server *network.Pod, options traffic.Options) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), options.Duration+20*time.Second)
	r := &running{done: make(chan struct{})}
	options.Verify = true
	go func() {
		defer cancel()
		defer close(r.done)
		r.result, r.err = traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
			return client.Dial(ctx, "tcp", net.JoinHostPort(server.IPv4, serverPort))
		}, options)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// wait waits for the end. No connection may have broken.
func (r *running) wait(t *testing.T) *traffic.Result {
	t.Helper()
	<-r.done
	require.NoError(t, r.err)
	if r.result.Failed > 0 {
		t.Errorf("%d connections broke: %v", r.result.Failed, r.result.Errors)
	}
	return r.result
}

func transfer(t *testing.T, client, server *network.Pod) *traffic.Result {
	t.Helper()
	return start(t, client, server, traffic.Options{Duration: 300 * time.Millisecond}).wait(t)
}

// newPair is a lab of a client, which has chains, and a server.
func newPair(t *testing.T, options Options) (l *lab, client, server *network.Pod) {
	t.Helper()
	l = newLab(t, 1, options)
	client, server = l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	serve(t, server)
	return l, client, server
}

// passed are the packets that the host's end of a pod's interface sent and received.
func (l *lab) passed(t *testing.T, pod int) (sent, received uint64) {
	t.Helper()
	counters, err := l.Nodes[0].Counters(l.Nodes[0].Pods[pod].HostInterface)
	require.NoError(t, err)
	return counters.TxPackets, counters.RxPackets
}

// programs counts our programs at the hooks of a pod's interface, however they are
// attached.
func (l *lab) programs(t *testing.T, pod int) (count int) {
	t.Helper()
	index := l.index(t, pod)
	require.NoError(t, l.Nodes[0].Do(func() error {
		for _, hook := range hooks {
			result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook.Type})
			// Kernels before 6.6 take the question for an invalid one.
			if err != nil && !errors.Is(err, ebpf.ErrNotSupported) && !errors.Is(err, unix.EINVAL) {
				return err
			}
			if err == nil {
				count += len(result.Programs)
			}
			filters, err := attach.Filters(index, hook)
			if err != nil {
				return err
			}
			count += len(filters)
		}
		return nil
	}))
	return count
}

// expectNothing checks that nothing is left at the node.
func (l *lab) expectNothing(t *testing.T) {
	t.Helper()
	for pod := range l.Nodes[0].Pods {
		if count := l.programs(t, pod); count != 0 {
			t.Errorf("pod %d has %d programs", pod, count)
		}
		handle, err := l.Nodes[0].Handle()
		require.NoError(t, err)
		device, err := handle.LinkByIndex(l.index(t, pod))
		require.NoError(t, err)
		qdiscs, err := handle.QdiscList(device)
		require.NoError(t, err)
		if slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" }) {
			t.Errorf("pod %d has a clsact qdisc", pod)
		}
	}
	if _, err := os.Stat(l.options.PinPath); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory of pins: %v", err)
	}
	if mode := l.chains.AttachMode(); mode != "" {
		t.Errorf("nothing is attached, by %q", mode)
	}
}

func forEachMode(t *testing.T, f func(t *testing.T, mode string, options Options)) {
	for _, mode := range []string{"tcx", "clsact"} {
		t.Run(mode, func(t *testing.T) { f(t, mode, Options{Clsact: mode == "clsact"}) })
	}
}

func TestRulesCountWhatTheyMatch(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode string, options Options) {
		l, client, server := newPair(t, options)
		l.apply(t, recording("all", "sent", "received", "syn"))
		if got := l.chains.AttachMode(); got != mode && mode == "clsact" {
			t.Errorf("programs are attached by %q", got)
		}
		result := transfer(t, client, server)
		uses := l.uses(t, 0)
		if uses["sent"].Bytes < uint64(result.Bytes) || uses["all"].Bytes != uses["sent"].Bytes+uses["received"].Bytes ||
			uses["all"].Hits != uses["sent"].Hits+uses["received"].Hits || uses["received"].Hits == 0 {
			t.Errorf("%d bytes arrived; the rules counted %+v", result.Bytes, uses)
		}
		if uses["syn"].Hits != 2 {
			t.Errorf("of one connection %d SYNs were counted", uses["syn"].Hits)
		}
		subflows, err := l.chains.Subflows()
		require.NoError(t, err)
		if len(subflows) != 1 || subflows[0].UID != uid(0) || subflows[0].Record.Traffic[0].Bytes < uint64(result.Bytes) {
			t.Errorf("the subflows are %+v", subflows)
		}
		l.apply(t)
		l.expectNothing(t)
		transfer(t, client, server)
	})
}

// One rule is always there, and must count each packet exactly once, while the
// others come, go and change their places.
func TestChangesWhileTrafficRunsLoseNothing(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.apply(t, recording("all"))
	sent, received := l.passed(t, 0)
	before := l.uses(t, 0)["all"].Hits
	r := start(t, client, server, traffic.Options{Connections: 4, Duration: 4 * time.Second})
	random := rand.New(rand.NewPCG(1, 2))
	changes := 0
	for running := true; running; {
		rules := recording("all", "sent", "received", "syn")
		random.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		keep := 1 + random.IntN(len(rules))
		rules = slices.DeleteFunc(rules, func(rule v1alpha1.PlanRule) bool {
			keep--
			return keep < 0 && rule.Name != "all"
		})
		l.apply(t, rules)
		changes++
		select {
		case <-r.done:
			running = false
		default:
		}
	}
	result := r.wait(t)
	time.Sleep(200 * time.Millisecond) // the last FINs
	sentAfter, receivedAfter := l.passed(t, 0)
	hits, packets := l.uses(t, 0)["all"].Hits-before, sentAfter-sent+receivedAfter-received
	t.Logf("%d changes, %.1f Mbit/s, %d packets, %d counted", changes, result.Mbit, packets, hits)
	if changes < 20 {
		t.Errorf("there were only %d changes", changes)
	}
	if hits > packets || packets-hits > 40 { // those for address resolution do not count
		t.Errorf("of %d packets %d were counted", packets, hits)
	}
}

func TestAChainThatCannotBeLeavesTheOldOne(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.apply(t, recording("all"))
	impossible := recording("all", "custom")
	impossible[1].Actions = []v1alpha1.Action{{Type: v1alpha1.ActionRunProgram, RunProgram: &v1alpha1.RunProgram{Program: "absent"}}}
	failed := l.tryApply(t, l.model(t, impossible))
	if err := failed[uid(0)]; len(failed) != 1 || err == nil || !strings.Contains(err.Error(), `rule "custom" of MPTCPPolicy/team/web: actions[0].runProgram.program`) {
		t.Errorf("the failures are %v", failed)
	}
	transfer(t, client, server)
	if uses := l.uses(t, 0); len(uses) != 1 || uses["all"].Hits == 0 {
		t.Errorf("the old chain counted %+v", uses)
	}
}

func TestAnEndpointThatCannotBeAttachedDoesNotHinderOthers(t *testing.T) {
	l, client, server := newPair(t, Options{})
	state := nodetest.Model(
		nodetest.Pod{UID: uid(7), Name: "team/gone", Interface: 4242, Rules: recording("sent")},
		nodetest.Pod{UID: uid(0), Name: "team/pod0", Interface: l.index(t, 0), Rules: recording("all")},
	)
	failed := l.tryApply(t, state)
	if len(failed) != 1 || failed[uid(7)] == nil {
		t.Errorf("the failures are %v", failed)
	}
	transfer(t, client, server)
	if l.uses(t, 0)["all"].Hits == 0 {
		t.Error("the other endpoint's chain counted nothing")
	}
}

func TestNothingIsLoadedForRulesThatCannotBe(t *testing.T) {
	l := newLab(t, 1, Options{})
	impossible := recording("sent")
	impossible[0].Match.Token = "none"
	failed := l.tryApply(t, l.model(t, impossible))
	if failed[uid(0)] == nil {
		t.Error("there is no failure")
	}
	l.expectNothing(t)
}

func TestEqualChainsShareASlotAndCountApart(t *testing.T) {
	l := newLab(t, 2, Options{})
	serve(t, l.Nodes[1].Pods[0])
	rules := recording("all", "syn")
	l.apply(t, rules, slices.Clone(rules))
	words := []word{l.half().endpoints[uid(0)].word, l.half().endpoints[uid(1)].word}
	if words[0].Slot() != words[1].Slot() || words[0].Row() == words[1].Row() {
		t.Errorf("the words are %x", words)
	}
	transfer(t, l.Nodes[0].Pods[1], l.Nodes[1].Pods[0])
	if a, b := l.uses(t, 0)["all"].Hits, l.uses(t, 1)["all"].Hits; a != 0 || b == 0 {
		t.Errorf("the pods' rules counted %d and %d packets", a, b)
	}
	l.apply(t, nil, rules)
	if l.programs(t, 0) != 0 || l.programs(t, 1) != 2 {
		t.Errorf("the pods have %d and %d programs", l.programs(t, 0), l.programs(t, 1))
	}
	before := l.uses(t, 1)["all"].Hits
	transfer(t, l.Nodes[0].Pods[1], l.Nodes[1].Pods[0])
	if l.uses(t, 1)["all"].Hits == before {
		t.Error("the chain that stays counts no longer")
	}
}

func TestARestartedAgentTakesOver(t *testing.T) {
	l, client, server := newPair(t, Options{})
	rules := recording("all", "sent")
	l.apply(t, rules)
	sent, received := l.passed(t, 0)
	first := *l.half().endpoints[uid(0)]
	r := start(t, client, server, traffic.Options{Duration: 2 * time.Second})
	for range 5 {
		time.Sleep(200 * time.Millisecond)
		l.restart(t)
		l.apply(t, rules)
	}
	if now := l.half().endpoints[uid(0)]; now.word != first.word || now.record != first.record {
		t.Errorf("the endpoint was %+v and is %+v", first, *now)
	}
	r.wait(t)
	l.restart(t)
	l.apply(t, recording("received", "all")) // another chain, by another agent
	time.Sleep(200 * time.Millisecond)
	sentAfter, receivedAfter := l.passed(t, 0)
	hits, packets := l.uses(t, 0)["all"].Hits, sentAfter-sent+receivedAfter-received
	t.Logf("of %d packets %d were counted", packets, hits)
	if hits > packets || packets-hits > 40 {
		t.Errorf("of %d packets %d were counted", packets, hits)
	}
	if now := l.half().endpoints[uid(0)]; now.record.Number != first.record.Number || now.word.Epoch() <= first.word.Epoch() {
		t.Errorf("the endpoint was %+v and is %+v", first, *now)
	}
	if count := l.programs(t, 0); count != 2 {
		t.Errorf("the pod has %d programs", count)
	}
}

func TestARestartedAgentRemovesWhatIsNoLongerWanted(t *testing.T) {
	forEachMode(t, func(t *testing.T, _ string, options Options) {
		l, client, server := newPair(t, options)
		l.apply(t, recording("all"))
		transfer(t, client, server)
		l.restart(t)
		l.apply(t)
		l.expectNothing(t)
	})
}

func TestAnotherAgentsThingsAreRemoved(t *testing.T) {
	forEachMode(t, func(t *testing.T, _ string, options Options) {
		l := newLab(t, 1, options)
		l.apply(t, recording("all"))
		l.restart(t)
		require.NoError(t, l.Nodes[0].Do(func() error { return l.chains.Remove(t.Context()) }))
		l.expectNothing(t)
		require.NoError(t, l.Nodes[0].Do(func() error { return l.chains.Remove(t.Context()) })) // it may be repeated
	})
}

func TestAnAgentWithOtherMapsBeginsAnew(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.apply(t, recording("all"))
	transfer(t, client, server)
	l.options.SubflowEntries = 1000
	l.restart(t)
	l.apply(t, recording("all"))
	if uses := l.uses(t, 0); uses["all"].Hits != 0 {
		t.Errorf("what nobody can have kept is counted: %+v", uses)
	}
	if count := l.programs(t, 0); count != 2 {
		t.Errorf("the pod has %d programs", count)
	}
	transfer(t, client, server)
	if l.uses(t, 0)["all"].Hits == 0 {
		t.Error("the new chain counts nothing")
	}
}

// Neither an upgrade nor the way back forgets a subflow, or lets a packet pass
// without rules or with those of two agents.
func TestAnotherVersionTakesOver(t *testing.T) {
	forEachMode(t, func(t *testing.T, _ string, options Options) {
		l, client, server := newPair(t, options)
		l.apply(t, recording("all"))
		r := start(t, client, server, traffic.Options{Duration: 10 * time.Minute}) // until the test ends
		first := *l.half().endpoints[uid(0)]
		for _, version := range []string{"v2", schema} {
			l.awaitSubflows(t)
			before, err := l.chains.Subflows()
			require.NoError(t, err)
			require.NoError(t, l.chains.Close())
			l.chains = open(l.options, version)
			l.apply(t, recording("all"))
			after, err := l.chains.Subflows()
			require.NoError(t, err)
			if len(after) < len(before) {
				t.Errorf("%s: there were %d subflows and are %d", version, len(before), len(after))
			}
			if now := l.half().endpoints[uid(0)]; now.record != first.record || now.word.Epoch() <= first.word.Epoch() {
				t.Errorf("%s: the endpoint was %+v and is %+v", version, first, *now)
			}
			if count := l.programs(t, 0); count != 2 {
				t.Errorf("%s: the pod has %d programs", version, count)
			}
			l.expectVersion(t, version)
			l.awaitHits(t)
		}
		select {
		case <-r.done:
			t.Errorf("the connection ended: %v", r.err)
		default:
		}
	})
}

// The link to the cgroup tree lies beside ours, and is for others to take off.
func TestWhatOthersPinnedComesAlong(t *testing.T) {
	l := newLab(t, 1, Options{})
	require.NoError(t, l.chains.TakeOver())
	if _, err := os.Stat(l.options.PinPath); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("where there was nothing, something is pinned: %v", err)
	}
	l.apply(t, recording("all"))
	pin := "govern_sockets_link"
	clone, err := l.half().maps["chain_numbers"].Clone()
	require.NoError(t, err)
	require.NoError(t, clone.Pin(filepath.Join(l.chains.loaded.Directory(), pin)))
	require.NoError(t, clone.Close())
	require.NoError(t, l.chains.Close())
	l.chains = open(l.options, "v2")
	require.NoError(t, l.chains.TakeOver())
	if _, err := os.Stat(filepath.Join(l.options.PinPath, "v2", pin)); err != nil {
		t.Error(err)
	}
	if count := l.programs(t, 0); count != 2 {
		t.Errorf("the pod has %d programs", count)
	}
}

// awaitSubflows waits until a subflow is known.
func (l *lab) awaitSubflows(t *testing.T) {
	t.Helper()
	testutil.Eventually(t, 30*time.Second, "a subflow is known", func() bool {
		subflows, err := l.chains.Subflows()
		require.NoError(t, err)
		return len(subflows) > 0
	})
}

// awaitHits waits until the new programs have counted a packet.
func (l *lab) awaitHits(t *testing.T) {
	t.Helper()
	testutil.Eventually(t, 30*time.Second, "the new chain counts", func() bool { return l.uses(t, 0)["all"].Hits > 0 })
}

// expectVersion checks that nothing of another version is pinned.
func (l *lab) expectVersion(t *testing.T, version string) {
	t.Helper()
	entries, err := os.ReadDir(l.options.PinPath)
	require.NoError(t, err)
	if len(entries) != 1 || entries[0].Name() != version {
		t.Errorf("pinned are %v, instead of %s alone", entries, version)
	}
}

// Slots, rows and the kernel's memory for chains are used again.
func TestManyChangesUseNoMoreThanOne(t *testing.T) {
	l := newLab(t, 1, Options{})
	for i := range 30 {
		l.apply(t, recording("all", fmt.Sprintf("rule-%d", i)))
	}
	b := l.half()
	if len(b.contents) != 1 || len(b.rows) != 2 || len(b.replaced) != 0 || len(b.stale) > 2 {
		t.Errorf("in use are the chains %d, rows %v, replaced %d, stale %v", len(b.contents), b.rows, len(b.replaced), b.stale)
	}
}

func TestAPodThatIsGoneIsForgotten(t *testing.T) {
	l := newLab(t, 2, Options{})
	serve(t, l.Nodes[1].Pods[0])
	l.apply(t, recording("all"), recording("all"))
	transfer(t, l.Nodes[0].Pods[0], l.Nodes[1].Pods[0])
	handle, err := l.Nodes[0].Handle()
	require.NoError(t, err)
	state := l.model(t, nil, recording("all"))
	device, err := handle.LinkByIndex(l.index(t, 0))
	require.NoError(t, err)
	require.NoError(t, handle.LinkDel(device))
	failed := l.tryApply(t, state)
	if len(failed) != 0 {
		t.Errorf("the failures are %v", failed)
	}
	if subflows, err := l.chains.Subflows(); err != nil || len(subflows) != 0 {
		t.Errorf("the subflows are %v, %v", subflows, err)
	}
	if len(l.half().endpoints) != 1 || l.programs(t, 1) != 2 {
		t.Errorf("the endpoints are %v", l.half().endpoints)
	}
	entries, err := os.ReadDir(filepath.Join(l.chains.loaded.Directory(), "links"))
	require.NoError(t, err)
	if len(entries) != 2 {
		t.Errorf("the links are %v", entries)
	}
}

// The registry of a node says which number is whose.
func TestAnEndpointWithAnotherNumberBeginsAnew(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.apply(t, recording("all"))
	transfer(t, client, server)
	model := l.model(t, recording("all"))
	model.Endpoints[0].Number = 7
	if failed := l.tryApply(t, model); len(failed) != 0 {
		t.Errorf("the failures are %v", failed)
	}
	subflows, err := l.chains.Subflows()
	require.NoError(t, err)
	for _, subflow := range subflows { // the last packets of the transfer may come after the change
		if subflow.Key.Endpoint != 7 {
			t.Errorf("a subflow of the number before is %+v", subflow)
		}
	}
	transfer(t, client, server)
	if attached := l.chains.Endpoints(); len(attached) != 1 || attached[0].Number != 7 || l.uses(t, 0)["all"].Hits == 0 {
		t.Errorf("the endpoints are %+v, with %+v", attached, l.uses(t, 0))
	}
}

// What a rule did to subflows is undone by their packets: until then the programs
// stay, and without packets too.
func TestProgramsStayUntilEffectsAreUndone(t *testing.T) {
	l, client, server := newPair(t, Options{})
	rules := recording("backup")
	rules[0].Actions = []v1alpha1.Action{{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: new(true)}}}
	l.apply(t, rules)
	r := start(t, client, server, traffic.Options{Duration: 2 * time.Second})
	time.Sleep(500 * time.Millisecond)
	subflows, err := l.chains.Subflows()
	require.NoError(t, err)
	if len(subflows) != 1 || subflows[0].Record.Engaged == 0 {
		t.Fatalf("the rule has no lasting effect on %+v", subflows)
	}
	l.apply(t)
	if count := l.programs(t, 0); count != 2 {
		t.Errorf("at once the pod has %d programs", count)
	}
	if endpoints := l.chains.Endpoints(); len(endpoints) != 0 {
		t.Errorf("endpoints without rules are listed: %+v", endpoints)
	}
	testutil.Retry(t, time.Second, func() error {
		l.apply(t)
		if l.programs(t, 0) > 0 {
			subflows, err := l.chains.Subflows()
			require.NoError(t, err)
			return fmt.Errorf("the programs stay; subflows %+v", subflows)
		}
		return nil
	})
	l.expectNothing(t)
	r.wait(t)
}

// Who begins connections and lets them hang does not hold the programs of a pod whose
// rules are gone.
func TestConnectionsThatNeverCameToBeDoNotKeepPrograms(t *testing.T) {
	l := newLab(t, 1, Options{})
	server, client := l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	serve(t, server)
	rules := recording("backup")
	rules[0].Actions = []v1alpha1.Action{{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: new(true)}}}
	l.apply(t, rules)
	l.keepAnswersFrom(t, client)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := client.Dial(ctx, "tcp", net.JoinHostPort(server.IPv4, serverPort)); err == nil {
		t.Fatal("the client was answered")
	}
	subflows, err := l.chains.Subflows()
	require.NoError(t, err)
	if len(subflows) == 0 || subflows[0].Record.Known&endpoint.KnownSYNACK == 0 || subflows[0].Record.Engaged == 0 {
		t.Fatalf("the subflows are %+v", subflows)
	}
	l.apply(t)
	l.expectNothing(t)
}

// keepAnswersFrom has the first node drop what goes to a pod of another.
func (l *lab) keepAnswersFrom(t *testing.T, pod *network.Pod) {
	t.Helper()
	require.NoError(t, l.Nodes[0].Do(func() error {
		address := &net.IPNet{IP: net.ParseIP(pod.IPv4), Mask: net.CIDRMask(32, 32)}
		return netlink.RouteReplace(&netlink.Route{Dst: address, Type: unix.RTN_BLACKHOLE})
	}))
}
