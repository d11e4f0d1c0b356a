// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/internal/agentapi"
)

// topper asks the agents of the nodes that matter, each by one stream on which a
// line comes for each reading. It is safe for concurrent use.
type topper struct {
	options topOptions
	system  *system
	client  client.Reader
	plans   planFinder
	streams sync.WaitGroup
	// changed gets something when there is something new.
	changed chan struct{}

	mutex  sync.Mutex
	agents map[string]*corev1.Pod
	asked  map[string]bool
	nodes  map[string]nodeTop
	names  peerNames
	// notAsked is how many further ones would matter, and are not asked: see mostNodes.
	notAsked int
	// uses are the nodes' paths, where these are asked for, without what they carry, and
	// following the streams that are asked for their NICs.
	uses      []PathUse
	following map[string]*following
}

// following is a stream of a node, and the flags that say of which NICs.
type following struct {
	nics []string
	stop context.CancelFunc
}

// nodeTop is the latest of a node.
type nodeTop struct {
	total    int
	subflows []Subflow
	problem  string
	// read is true once its agent has said something; what NICs carry is by their names,
	// what subflows do by their paths.
	read  bool
	nics  map[string]agentapi.NICRate
	paths map[string]agentapi.PathRate
}

func (p *plugin) newTopper(ctx context.Context, options topOptions) (*topper, error) {
	c, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	s, err := p.system(options.systemNamespace)
	if err != nil {
		return nil, err
	}
	tables, err := newTables(s.config)
	if err != nil {
		return nil, err
	}
	t := topperOf(options, s, c, farPlans{c, tables})
	return t, t.look(ctx)
}

// topperOf has not looked for nodes yet.
func topperOf(options topOptions, s *system, c client.Reader, plans planFinder) *topper {
	return &topper{
		options: options, system: s, client: c, plans: plans, changed: make(chan struct{}, 1), names: newPeerNames(),
		asked: map[string]bool{}, nodes: map[string]nodeTop{}, following: map[string]*following{},
	}
}

// look finds out which nodes matter: those with pods that were asked for. Most of a
// large cluster is not asked then.
func (t *topper) look(ctx context.Context) error {
	if t.options.paths {
		return t.lookAtPaths(ctx)
	}
	var plans []planSketch
	var others []counted
	var agents map[string]*corev1.Pod
	group, both := errgroup.WithContext(ctx)
	group.Go(func() (err error) {
		plans, others, err = t.plans.find(both, &t.options)
		return wrap(err, "reading the plans")
	})
	group.Go(func() (err error) {
		agents, err = t.system.agents(both)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.agents = agents
	t.names.begin()
	t.limit(t.choose(plans, others))
	return nil
}

// choose takes the nodes with pods that were asked for, and counts of all the pods that send.
// The caller has the mutex.
func (t *topper) choose(plans []planSketch, others []counted) map[string]int {
	before, sending := t.nodes, map[string]int{}
	t.nodes = map[string]nodeTop{}
	for _, plan := range others {
		if s := plan.summary; s.Pods+s.VirtualMachines+s.VirtualMachinePods > 0 {
			t.nodes[plan.node], sending[plan.node] = before[plan.node], int(s.Sending)
		}
	}
	for i := range plans {
		node := plans[i].Metadata.Name
		plans[i].nameInto(t.names.names)
		for j := range plans[i].Spec.Endpoints {
			if t.wants(node, &plans[i].Spec.Endpoints[j]) {
				t.nodes[node] = before[node]
			}
		}
		sending[node] = plans[i].sendingPods()
	}
	return sending
}

// limit leaves the nodes with the most pods that send: each is a stream through the API
// server. The streams of others end.
func (t *topper) limit(sending map[string]int) {
	t.notAsked = 0
	most := t.options.mostNodes
	if most == 0 || len(t.nodes) <= most {
		return
	}
	names := slices.SortedFunc(maps.Keys(t.nodes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sending[b], sending[a]), strings.Compare(a, b))
	})
	for _, name := range names[most:] {
		delete(t.nodes, name)
		if stream := t.following[name]; stream != nil {
			stream.stop()
		}
	}
	t.notAsked = len(names) - most
}

// notAskedText says what was left out; empty where nothing was.
func notAskedText(count int) string {
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("%d more nodes were not asked: name a pod, --namespace or --node, or raise --nodes (0 asks all)", count)
}

func (t *topper) wants(node string, endpoint *podSketch) bool {
	o := &t.options
	return o.wantsNode(node) && (o.namespace == "" || o.namespace == endpoint.Namespace) &&
		(o.pod == "" || o.pod == endpoint.Name)
}

// startAll opens the streams that are not open.
func (t *topper) startAll(ctx context.Context, arguments ...string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for node := range t.nodes {
		if t.asked[node] {
			continue
		}
		t.asked[node] = true
		t.streams.Go(func() { t.stream(ctx, node, arguments) })
	}
}

// stream reads one node until the command ends. Its context ends it, and so does
// whatever goes wrong, which is what is shown of the node then.
func (t *topper) stream(ctx context.Context, node string, arguments []string) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	t.mutex.Lock()
	agent, nics := t.agents[node], t.nicsOf(node)
	mine := &following{nics, stop}
	t.following[node] = mine
	t.mutex.Unlock()
	err := fmt.Errorf("no agent runs there")
	if agent != nil {
		heard := false
		err = t.system.ask(ctx, agent, &jsonLines[agentapi.Reading]{visit: func(found *agentapi.Reading) {
			heard = true
			t.take(node, found)
		}}, append(t.command(nics), arguments...)...)
		if err == nil && !heard {
			err = errNoReading
		}
	}
	t.mutex.Lock()
	if t.following[node] == mine { // and none that took its place
		t.asked[node] = false
	}
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		t.nodes[node] = nodeTop{problem: err.Error()}
	}
	t.mutex.Unlock()
	t.wake()
}

// command asks for what is wanted alone, so that the limit holds for that.
func (t *topper) command(nics []string) []string {
	o := &t.options
	command := []string{"rates", "--attached", "--every=" + o.every.String()}
	if o.paths {
		return append(append(command, "--limit=1"), nics...)
	}
	command = append(command, fmt.Sprintf("--limit=%d", o.limit))
	if o.path != "" {
		command = append(command, "--path="+o.path)
	}
	if o.namespace != "" {
		command = append(command, strings.TrimSuffix(o.namespace+"/"+o.pod, "/"))
	}
	return command
}

// take keeps what a node says.
func (t *topper) take(node string, found *agentapi.Reading) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	latest := nodeTop{total: found.Total, read: true, nics: map[string]agentapi.NICRate{}, paths: map[string]agentapi.PathRate{}}
	for _, nic := range found.NICs {
		latest.nics[nic.Name] = nic
	}
	for _, path := range found.Paths {
		latest.paths[path.Path] = path
	}
	for i := range found.Busy {
		latest.subflows = append(latest.subflows, subflowOf(node, &found.Busy[i]))
		t.names.names[found.Busy[i].Local.Addr()] = found.Busy[i].Endpoint
	}
	if _, wanted := t.nodes[node]; !wanted {
		return // its stream is about to end
	}
	t.nodes[node] = latest
	if !t.options.paths {
		t.names.want(latest.subflows)
	}
	t.wake()
}

func subflowOf(node string, b *agentapi.Rate) Subflow {
	return Subflow{
		Node: node, Pod: b.Endpoint, peerAddress: b.Remote.Addr(),
		Local: b.Local.String(), Remote: b.Remote.String(), Path: b.Path, StandIn: b.StandIn, Incoming: b.Incoming, Backup: b.Backup,
		SentBitsPerSecond: b.SentBitsPerSecond, ReceivedBitsPerSecond: b.ReceivedBitsPerSecond,
		RTTMicroseconds: b.RTTMicroseconds, Token: b.Token.String(),
	}
}

func (t *topper) wake() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// snapshot is the latest of all nodes, in no order.
func (t *topper) snapshot() *Top {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	all := &Top{Subflows: []Subflow{}, NotAsked: t.notAsked}
	for name, node := range t.nodes {
		all.Total += node.total
		for _, subflow := range node.subflows {
			subflow.Peer = t.names.of(subflow.peerAddress)
			all.Subflows = append(all.Subflows, subflow)
		}
		if node.problem != "" {
			all.Problems = append(all.Problems, Problem{"node " + name, "NotRead", node.problem})
		}
	}
	sortProblems(all.Problems)
	return all
}

func sortProblems(problems []Problem) {
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Object, b.Object) })
}

// lookAgain is how often pods that are new are looked for, and streams that broke
// are opened again.
const lookAgain = 10 * time.Second

// followCount bounds how long a command runs in an agent's container when nobody
// tells it that we are gone: a new one takes its place.
const followCount = 300

// follow keeps the streams open until the context ends.
func (t *topper) follow(ctx context.Context, failed func(error)) {
	ticker := time.NewTicker(lookAgain)
	defer ticker.Stop()
	for {
		t.startAll(ctx, fmt.Sprintf("--count=%d", followCount))
		var err error
		select {
		case <-ctx.Done():
			return
		case <-t.names.wanted:
			err = t.namePeers(ctx)
		case <-ticker.C:
			err = t.look(ctx)
		}
		if err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
}
