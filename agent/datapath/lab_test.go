// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// lab is a network whose nodes run the datapath.
type lab struct {
	*network.Network
	pins      string
	datapaths []*Datapath
	builders  []*node.Builder
	options   Options
	// least is how many times what one path carries a connection in an overlay gets; 0
	// for what is usual.
	least float64
	// alone is what a connection got of one path, where that was measured; served, which versions
	// of IP are answered.
	alone  map[transfers]float64
	served map[int]bool
	// unselected is the address of a pod that no policy selects.
	unselected string
}

// newLab builds nodes and pods, without applying anything yet. Its name and its pins are its own:
// long tests, which mostly wait, run two at a time, but for those that load programs while bytes
// are under way: the verifier takes longer beside others.
func newLab(t *testing.T, paths []string, pods int, options Options) *lab {
	t.Helper()
	return newLabOf(t, network.Spec{Nodes: 2, Paths: paths, LinkMbit: 100, PodsPerNode: pods}, options)
}

func newLabOf(t *testing.T, spec network.Spec, options Options) *lab {
	t.Helper()
	l := &lab{pins: testutil.BPFFS(t), options: options, served: map[int]bool{}}
	l.Network = network.ForTest(t, spec)
	for i, node := range l.Nodes {
		l.datapaths = append(l.datapaths, Open(l.nodeOptions(i)))
		l.builders = append(l.builders, nodetest.NewBuilder(l.nodeOptions(i).PinPath))
		for _, pod := range node.Pods {
			// A lost ADD_ADDR is repeated after a second, and not after two minutes.
			require.NoError(t, pod.Sysctl("net.mptcp.add_addr_timeout", "1"))
		}
	}
	t.Cleanup(func() {
		for i, datapath := range l.datapaths {
			if err := l.Nodes[i].Do(func() error { return datapath.Remove(context.Background()) }); err != nil {
				t.Errorf("removing the datapath of node %d: %v", i+1, err)
			}
		}
	})
	return l
}

func (l *lab) nodeOptions(i int) Options {
	options := l.options
	options.PinPath = filepath.Join(l.pins, strconv.Itoa(i))
	options.FlowEntries = 4096
	return options
}

// states describe the whole network, each node's pods selected.
func (l *lab) states(t *testing.T) []State {
	t.Helper()
	states := make([]State, len(l.Nodes))
	for i, node := range l.Nodes {
		for _, path := range l.Spec.Paths {
			index, err := node.Index(path)
			require.NoError(t, err)
			states[i].Paths = append(states[i].Paths, Path{Name: path, Interface: index, Up: true})
		}
		for j, other := range l.Nodes {
			if i != j {
				states[i].Peers = append(states[i].Peers, l.peer(other))
			}
		}
		for _, pod := range node.Pods {
			states[i].Endpoints = append(states[i].Endpoints, l.endpoint(t, pod))
		}
	}
	return states
}

func (l *lab) peer(node *network.Node) Peer {
	peer := Peer{Name: node.NodeName(), Paths: map[string]PeerPath{}}
	for p, path := range l.Spec.Paths {
		var addresses []netip.Addr
		for _, version := range l.Versions() {
			addresses = append(addresses, netip.MustParseAddr(node.Address(p, version)))
		}
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[path] = PeerPath{Addresses: addresses, Up: true}
	}
	return peer
}

func (l *lab) endpoint(t *testing.T, pod *network.Pod) Endpoint {
	t.Helper()
	endpoint := Endpoint{}
	for _, version := range l.Versions() {
		endpoint.Addresses = append(endpoint.Addresses, netip.MustParseAddr(pod.Address(version)))
	}
	index, err := pod.Node.Index(pod.HostInterface)
	require.NoError(t, err)
	endpoint.Interface = index
	for _, path := range l.Spec.Paths {
		endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(path), Weight: 1})
	}
	return endpoint
}

func (l *lab) apply(t *testing.T, node int, state State) {
	t.Helper()
	if err := l.Nodes[node].Do(func() error { return state.Apply(t.Context(), l.datapaths[node], l.builders[node]) }); err != nil {
		t.Fatalf("applying the state of node %d: %v", node+1, err)
	}
}

func (l *lab) applyAll(t *testing.T) {
	t.Helper()
	for i, state := range l.states(t) {
		l.apply(t, i, state)
	}
}

const firstAnnouncedPort = 61001

// announce lets the kernel's path managers of two pods open count subflows for
// each connection from client to server.
func announce(t *testing.T, client, server *network.Pod, version, count int) {
	t.Helper()
	limitSubflows(t, client, count)
	limitSubflows(t, server, count)
	// Some kernels forget one of two announcements that come together; the next one
	// comes after two minutes, if nothing else is said.
	require.NoError(t, server.Sysctl("net.mptcp.add_addr_timeout", "1"))
	for i := range count - 1 {
		run(t, server, "ip", "mptcp", "endpoint", "add", server.Address(version), "port", strconv.Itoa(firstAnnouncedPort+i), "signal")
	}
}

// limitSubflows sets how many subflows the pod's new connections may have.
func limitSubflows(t *testing.T, pod *network.Pod, count int) {
	t.Helper()
	limit := strconv.Itoa(count - 1)
	run(t, pod, "ip", "mptcp", "limits", "set", "subflows", limit, "add_addr_accepted", limit)
}

func run(t *testing.T, pod *network.Pod, name string, args ...string) {
	t.Helper()
	if out, err := pod.Run(name, args...); err != nil {
		t.Fatalf("%s %v: %v: %s", name, args, err, out)
	}
}

const port = "5001"

// serve answers transfers in the pod until the test ends.
func serve(t *testing.T, pod *network.Pod, version int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := pod.Listen(ctx, "tcp", net.JoinHostPort(pod.Address(version), port))
	if err != nil {
		t.Fatal(err)
	}
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
	began     time.Time
	last      *net.TCPConn // the last one to be opened
	result    *traffic.Result
	err       error
	connected chan struct{} // closed when all connections are there
	stop      chan struct{}
	done      chan struct{}
}

// untilEnded is the duration of transfers that a test ends when it has seen enough, however long
// a busy machine takes for it.
const untilEnded = time.Minute

// start begins MPTCP connections from client to server.
func start(t *testing.T, client, server *network.Pod, version int, options traffic.Options) *running {
	t.Helper()
	return startWith(t, options, func(ctx context.Context) (net.Conn, error) {
		return client.Dial(ctx, "tcp", net.JoinHostPort(server.Address(version), port))
	})
}

func startWith(t *testing.T, options traffic.Options, dial traffic.DialFunc) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), options.Duration+20*time.Second)
	r := &running{began: time.Now(), connected: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	options.Stop = r.stop
	go func() {
		defer cancel()
		defer close(r.done)
		r.result, r.err = traffic.Run(ctx, r.counted(dial, max(options.Connections, 1)), options)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// counted is dial, which says when the last of so many connections is there. A
// transfer opens them one after the other.
func (r *running) counted(dial traffic.DialFunc, count int) traffic.DialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		connection, err := dial(ctx)
		if count--; count == 0 {
			r.last, _ = connection.(*net.TCPConn)
			close(r.connected)
		}
		return connection, err
	}
}

// awaitConnections waits until all of the transfer's connections are there.
func (r *running) awaitConnections() {
	select {
	case <-r.connected:
	case <-r.done:
	}
}

// awaitSubflows waits until the last connection has so many.
func (r *running) awaitSubflows(t *testing.T, count int) {
	t.Helper()
	r.awaitConnections()
	if r.last == nil {
		t.Fatal("there is no connection")
	}
	var subflows []traffic.Subflow
	testutil.Retry(t, 5*time.Second, func() error {
		now, err := traffic.Subflows(r.last)
		if err != nil {
			t.Fatalf("the connection ended with %d subflows instead of %d: %+v (%v)", len(subflows), count, subflows, err)
		}
		if subflows = now; len(subflows) != count {
			return fmt.Errorf("the connection has %d subflows instead of %d: %+v", len(subflows), count, subflows)
		}
		return nil
	})
}

// at waits until the transfer has run for this long.
func (r *running) at(since time.Duration) { time.Sleep(time.Until(r.began.Add(since))) }

// wait waits for the transfer's end. No connection may have broken.
func (r *running) wait(t *testing.T) *traffic.Result {
	t.Helper()
	<-r.done
	if r.err != nil {
		t.Fatalf("transfer: %v", r.err)
	}
	if r.result.Failed > 0 {
		t.Errorf("%d connections broke: %v", r.result.Failed, r.result.Errors)
	}
	return r.result
}

// end has the client send no more, and waits for the transfer's end.
func (r *running) end(t *testing.T) *traffic.Result {
	t.Helper()
	close(r.stop)
	return r.wait(t)
}

// mixture is traffic that fills all paths at any time: many connections of one
// subflow, three of them on each path, and one connection of three subflows,
// which alone would stop for as long as the stack takes to mend a loss.
type mixture struct{ many, spread *running }

const mixtureSubflows = 9 + 3

// startMixture begins with the connection of three subflows, which may wait for the
// second announcement of an address: the mixture begins when they are there.
func startMixture(t *testing.T, client, server *network.Pod, options traffic.Options) mixture {
	t.Helper()
	const (
		joining    = 100 * time.Millisecond
		announcing = 1500 * time.Millisecond // for what is announced again
	)
	limitSubflows(t, client, 3)
	options.Bin = 10 * time.Millisecond
	longer := options
	longer.Duration += joining + announcing
	m := mixture{spread: start(t, client, server, 4, longer)}
	m.spread.awaitSubflows(t, 3)
	limitSubflows(t, client, 1)
	options.Connections = 9
	m.many = start(t, client, server, 4, options)
	m.many.awaitConnections()
	m.many.at(joining)
	limitSubflows(t, client, 3)
	return m
}

// at waits until the mixture has run for this long.
func (m mixture) at(since time.Duration) { m.many.at(since) }

// end has the client send no more, and waits for the end.
func (m mixture) end(t *testing.T) {
	t.Helper()
	close(m.many.stop)
	close(m.spread.stop)
	m.wait(t)
}

// wait waits for the end. No connection may have broken, nor all have stopped
// for long.
func (m mixture) wait(t *testing.T) {
	t.Helper()
	many, spread := m.many.wait(t), m.spread.wait(t)
	t.Logf("%.1f and %.1f MB, longest stop %s", float64(many.Bytes)/1e6, float64(spread.Bytes)/1e6, longestStop(many))
	if stop := longestStop(many); stop > time.Second {
		t.Errorf("nothing arrived for %s", stop)
	}
	if spread.Subflows != 3 || !spread.Multipath {
		t.Errorf("at the end there were %d subflows, multipath %t", spread.Subflows, spread.Multipath)
	}
}

// longestStop is the longest time in which nothing arrived on any connection.
func longestStop(result *traffic.Result) time.Duration {
	longest, empty := 0, 0
	for _, bytes := range result.Bins {
		if bytes > 0 {
			empty = 0
			continue
		}
		empty++
		longest = max(longest, empty)
	}
	return time.Duration(float64(longest) * result.BinMs * float64(time.Millisecond))
}

// transfer runs one transfer between the pods.
func transfer(t *testing.T, client, server *network.Pod, version int, options traffic.Options) *traffic.Result {
	t.Helper()
	return start(t, client, server, version, options).wait(t)
}

// counted are bytes by path.
type counted map[string]uint64

// share is a path's part of all bytes, from 0 to 1.
func (c counted) share(path string) float64 {
	var all uint64
	for _, bytes := range c {
		all += bytes
	}
	return float64(c[path]) / float64(max(all, 1))
}

// expectShares checks that each of the paths carried about its part of the bytes.
func (c counted) expectShares(t *testing.T, what string, expected map[string]float64) {
	t.Helper()
	for path := range c {
		if share := c.share(path); share < expected[path]-0.12 || share > expected[path]+0.12 {
			t.Errorf("%s: %s carried %.2f of the bytes instead of %.2f: %v", what, path, share, expected[path], c)
		}
	}
}

// sent is what each of a node's NICs sent while f ran, in bytes.
func (l *lab) sent(t *testing.T, node int, f func()) counted {
	t.Helper()
	before, err := l.NICCounters(l.Nodes[node])
	require.NoError(t, err)
	f()
	after, err := l.NICCounters(l.Nodes[node])
	require.NoError(t, err)
	result := counted{}
	for path := range after {
		result[path] = after[path].TxBytes - before[path].TxBytes
	}
	return result
}

// sentIn is what the NICs send in this time.
func (l *lab) sentIn(t *testing.T, node int, in time.Duration) counted {
	t.Helper()
	return l.sent(t, node, func() { time.Sleep(in) })
}

func (l *lab) flows(t *testing.T, node int) []Flow {
	t.Helper()
	flows, err := l.datapaths[node].Flows()
	require.NoError(t, err)
	return flows
}

// awaitSubflows waits until a node has so many living flows, and returns them.
func (l *lab) awaitSubflows(t *testing.T, node, count int) (flows []Flow) {
	t.Helper()
	var first []Flow // for transfers end meanwhile
	var counts []int
	testutil.Retry(t, 5*time.Second, func() error {
		if flows = living(l.flows(t, node)); len(flows) == count {
			return nil
		}
		if first == nil {
			first = flows
		}
		if len(counts) == 0 || counts[len(counts)-1] != len(flows) {
			counts = append(counts, len(flows))
		}
		return fmt.Errorf("node %d had %v subflows, one number after the other, and never %d; first they were %s", node+1, counts, count, describe(first))
	})
	return flows
}

// living are the flows that have not ended.
func living(flows []Flow) []Flow {
	return slices.DeleteFunc(slices.Clone(flows), func(flow Flow) bool { return flow.Ended })
}

// pathCounts are the numbers of flows on each path.
func pathCounts(flows []Flow) map[string]int {
	counts := map[string]int{}
	for _, flow := range flows {
		counts[flow.Path]++
	}
	return counts
}

// ends of a flow, as its node sees them.
type ends struct{ local, remote netip.AddrPort }

// byEnds are the flows by their ends, without the time that passes.
func byEnds(flows []Flow) map[ends]Flow {
	result := map[ends]Flow{}
	for _, flow := range flows {
		flow.Idle, flow.StandIn, flow.Incoming = 0, "", "" // a path that stands in may still carry the last packets
		result[ends{flow.Local, flow.Remote}] = flow
	}
	return result
}

// neighbours are those that a node's kernel knows.
func (l *lab) neighbours(t *testing.T, node int) (known map[neighbour]neighbourEntry) {
	t.Helper()
	require.NoError(t, l.Nodes[node].Do(func() (err error) {
		known, err = listNeighbours()
		return err
	}))
	return known
}

func describe(flows []Flow) (text string) {
	for _, flow := range flows {
		text += fmt.Sprintf("\n  %s -> %s path %s initiator %t token %08x ended %t", flow.Local, flow.Remote, flow.Path, flow.Initiator, flow.Token, flow.Ended)
	}
	return text
}

func describeEnds(flows map[ends]Flow) string {
	return describe(slices.SortedFunc(maps.Values(flows), func(a, b Flow) int { return a.Local.Compare(b.Local) }))
}
