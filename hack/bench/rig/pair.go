// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/narrow"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	pairName  = "bench"
	pairState = "/run/braid-bench"
	podState  = pairState + "-pods"
	pairPort  = "5001"

	// LinkMbit is the rate of links where an experiment names none.
	LinkMbit = 100
)

// Paths are the names of up to four.
var Paths = []string{"blue", "green", "red", "gold"}

// Pair is two nodes with a pod or a guest each, on which Braid can be turned on and off
// without any control plane.
type Pair struct {
	*network.Network
	datapaths []*datapath.Datapath
	builders  []*node.Builder
	pods      []*pathmanager.Namespace
	narrow    []*narrow.Narrow
	looking   Closers
	chains    *chains.Chains // of the sender's node
	pacer     *pace.Pacer
	server    Closers
}

// EachPath is, as a number of subflows, one for each.
const EachPath = -1

// Mode is one way to send a connection's subflows over the paths.
type Mode struct {
	Name      string
	Subflows  int // EachPath, or their number; 0 leaves them to the kernel
	OpenAfter pathmanager.OpenAfter
	Multipath bool // the nodes' routes have one next hop for each path
	Braid     bool // steers
}

// Modes that several experiments compare.
var (
	Single = Mode{Name: "single"}
	Braid  = Mode{Name: "braid", Subflows: EachPath, Braid: true}
)

// PairOver makes pairs with so many paths.
func PairOver(paths int) func(context.Context) (*Pair, error) {
	return PairOn(network.Spec{Paths: Paths[:paths], LinkMbit: LinkMbit, PodsPerNode: 1})
}

// PairOn makes pairs on a network of two nodes.
func PairOn(spec network.Spec) func(context.Context) (*Pair, error) {
	return func(ctx context.Context) (*Pair, error) { return NewPair(ctx, spec) }
}

// NewPair builds a pair, and removes what a killed run left.
func NewPair(ctx context.Context, spec network.Spec) (*Pair, error) {
	if err := removePair(); err != nil {
		return nil, err
	}
	spec.Name, spec.Nodes = pairName, 2
	p := &Pair{}
	if err := p.build(ctx, spec); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// Evenly gives all paths of a network the same delay, one way.
func Evenly(paths []string, delay time.Duration) map[string]time.Duration {
	delays := map[string]time.Duration{}
	for _, path := range paths {
		delays[path] = delay
	}
	return delays
}

func removePair() error {
	err := network.Teardown(pairName)
	if unmountErr := unix.Unmount(pairState, unix.MNT_DETACH); unmountErr != nil && !errors.Is(unmountErr, unix.EINVAL) && !errors.Is(unmountErr, unix.ENOENT) {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", pairState, unmountErr))
	}
	return errors.Join(err, os.RemoveAll(pairState), os.RemoveAll(podState))
}

func (p *Pair) build(ctx context.Context, spec network.Spec) (err error) {
	if err := os.MkdirAll(pairState, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bpf", pairState, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mounting a BPF file system: %w", err)
	}
	if p.Network, err = network.Build(spec); err != nil {
		return err
	}
	for _, of := range p.Nodes {
		pins := filepath.Join(pairState, of.NodeName())
		p.datapaths = append(p.datapaths, datapath.Open(datapath.Options{PinPath: pins, Log: logr.Discard()}))
		p.builders = append(p.builders, nodetest.NewBuilder(pins))
		p.lookAtWindows()
		pod, err := pathmanager.Open(of.Pods[0].Path(), pathmanager.Options{StatePath: podState, Log: logr.Discard()})
		if err != nil {
			return err
		}
		p.pods = append(p.pods, pod)
	}
	pins := filepath.Join(pairState, "endpoints")
	p.chains = chains.Open(chains.Options{PinPath: pins, Log: logr.Discard()})
	p.pacer = pace.Open(pace.Options{
		PinPath: chains.Directory(pins), NamespaceDirectories: []string{network.Directory}, Log: logr.Discard(),
	})
	server, err := Serve(ctx, p.Receiver().Namespace, pairPort)
	if err == nil {
		p.server.Own(server)
	}
	return err
}

// lookAtWindows runs the part that looks at the windows of connections of the last datapath.
func (p *Pair) lookAtWindows() {
	part := narrow.New(narrow.Options{Datapath: p.datapaths[len(p.datapaths)-1], Log: logr.Discard()})
	p.narrow = append(p.narrow, part)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- part.Run(ctx) }()
	p.looking.Own(closing(func() error { cancel(); return <-done }))
}

type closing func() error

func (c closing) Close() error { return c() }

// Sender is the pod or guest from which transfers go, and Receiver the one with the
// server.
func (p *Pair) Sender() *network.Pod { return p.Nodes[0].Pods[0] }

// Receiver is the pod or guest with the server.
func (p *Pair) Receiver() *network.Pod { return p.Nodes[1].Pods[0] }

// Route is from the sender to the receiver's server.
func (p *Pair) Route(version int) Route {
	return Route{From: p.Sender().Namespace, To: net.JoinHostPort(p.Receiver().Address(version), pairPort)}
}

// Server answers transfers.
type Server struct {
	cancel context.CancelFunc
	done   chan error
}

// Serve answers transfers in a namespace until it is closed.
func Serve(ctx context.Context, namespace *network.Namespace, port string) (*Server, error) {
	listener, err := namespace.Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	s := &Server{cancel, make(chan error, 1)}
	go func() { s.done <- traffic.Serve(ctx, listener) }()
	return s, nil
}

// Close stops the server.
func (s *Server) Close() error {
	s.cancel()
	return <-s.done
}

// Close removes the pair, also one that was not finished.
func (p *Pair) Close() error {
	failed := errors.Join(p.server.Close(), p.looking.Close())
	if p.chains != nil {
		failed = errors.Join(failed, p.pacer.Remove(), p.pacer.Close(), p.Sender().Node.Do(func() error { return p.chains.Remove(context.Background()) }))
	}
	for _, pod := range p.pods {
		failed = errors.Join(failed, pod.Restore(context.Background()), pod.Close())
	}
	for i := range p.datapaths {
		failed = errors.Join(failed, p.steer(i, false))
	}
	if p.Network != nil {
		failed = errors.Join(failed, p.Network.Delete())
	}
	return errors.Join(failed, removePair())
}

// Set brings the pair into a mode.
func (p *Pair) Set(ctx context.Context, m Mode) error {
	for i := range p.pods {
		if err := errors.Join(p.setSubflows(ctx, i, m), p.steer(i, m.Braid)); err != nil {
			return fmt.Errorf("%s: %w", m.Name, err)
		}
	}
	return p.route(m.Multipath)
}

func (p *Pair) setSubflows(ctx context.Context, i int, m Mode) error {
	if m.Subflows == 0 {
		return p.pods[i].Restore(ctx)
	}
	count := m.Subflows
	if count == EachPath {
		count = len(p.Spec.Paths)
	}
	return p.pods[i].Configure(ctx, pathmanager.Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: count, Addresses: addressesOf(p.Nodes[i].Pods[0]), OpenAfter: m.OpenAfter,
	})
}

func addressesOf(pod *network.Pod) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
}

func (p *Pair) steer(i int, on bool) error {
	model := &node.Model{}
	if on {
		pod := p.Nodes[i].Pods[0]
		model.Endpoints = []node.Endpoint{{Addresses: addressesOf(pod), Found: &endpoints.Endpoint{Path: pod.Path()}}}
	}
	p.narrow[i].Apply(context.Background(), model)
	return p.Nodes[i].Do(func() error {
		if !on {
			return p.datapaths[i].Remove(context.Background())
		}
		state, err := p.state(i)
		if err != nil {
			return err
		}
		return state.Apply(context.Background(), p.datapaths[i], p.builders[i])
	})
}

// state is what an agent of the node would find.
func (p *Pair) state(i int) (nodetest.State, error) {
	state := nodetest.State{}
	endpoint := nodetest.Endpoint{Addresses: addressesOf(p.Nodes[i].Pods[0])}
	node, other := p.Nodes[i], p.Nodes[1-i]
	peer := nodetest.Peer{Name: other.NodeName(), Paths: map[string]nodetest.PeerPath{}}
	for i, name := range p.Spec.Paths {
		index, err := node.Index(name)
		if err != nil {
			return state, err
		}
		addresses := []netip.Addr{netip.MustParseAddr(other.Address(i, 4)), netip.MustParseAddr(other.Address(i, 6))}
		state.Paths = append(state.Paths, nodetest.Path{Name: name, Interface: index, Up: true})
		endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(name), Weight: 1})
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[name] = nodetest.PeerPath{Addresses: addresses, Up: true}
	}
	state.Peers, state.Endpoints = []nodetest.Peer{peer}, []nodetest.Endpoint{endpoint}
	return state, nil
}

// route gives the nodes' IPv4 routes to each other's pods one next hop for each
// link, chosen by a hash over addresses and ports, or one next hop in all.
func (p *Pair) route(many bool) error {
	for i, node := range p.Nodes {
		other, hops := p.Nodes[1-i], []string{"route", "replace", p.Nodes[1-i].PodCIDR(4)}
		for index, name := range p.Spec.Paths {
			if index > 0 && !many {
				break
			}
			hops = append(hops, "nexthop", "via", other.Address(index, 4), "dev", name)
		}
		if err := node.Sysctl("net.ipv4.fib_multipath_hash_policy", "1"); err != nil {
			return err
		}
		if _, err := node.Run("ip", hops...); err != nil {
			return fmt.Errorf("setting routes: %w", err)
		}
	}
	return nil
}

// Transfer in a mode; it fails unless all of its connections ended well as MPTCP ones.
func (p *Pair) Transfer(ctx context.Context, m Mode, version int, options traffic.Options) (*traffic.Result, error) {
	if err := p.Set(ctx, m); err != nil {
		return nil, err
	}
	result, err := p.Route(version).Transfer(ctx, options)
	if err == nil {
		err = Intact(result)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.Name, err)
	}
	return result, nil
}

// Start begins a transfer over IPv4, and waits until it has a subflow for each path.
func (p *Pair) Start(ctx context.Context, options traffic.Options) (*Running, error) {
	t, err := p.Route(4).Start(ctx, options)
	if err != nil {
		return nil, err
	}
	return t, t.WaitForSubflows(ctx, len(p.Spec.Paths))
}

// Give gives the sender its rules.
func (p *Pair) Give(rules []v1alpha1.PlanRule) error {
	pod := p.Sender()
	model, err := p.modelOf(pod, rules)
	if err != nil {
		return err
	}
	err = pod.Node.Do(func() error { return nodetest.Failures(p.chains.Apply(context.Background(), model)) })
	if err == nil {
		err = p.pace(pod, len(rules) > 0)
	}
	if err != nil {
		return fmt.Errorf("giving %s its rules: %w", pod.PodName, err)
	}
	return nil
}

func (p *Pair) modelOf(pod *network.Pod, rules []v1alpha1.PlanRule) (*node.Model, error) {
	index, err := pod.Node.Index(pod.HostInterface)
	if err != nil {
		return nil, err
	}
	model := nodetest.Model(nodetest.Pod{UID: types.UID(pod.PodName), Name: pod.PodName, Interface: index, Rules: rules})
	for i, name := range p.Spec.Paths {
		index, err := pod.Node.Index(name)
		if err != nil {
			return nil, err
		}
		model.Paths = append(model.Paths, node.Path{Name: name, Number: uint8(i), Interface: index})
	}
	return model, nil
}

// pace lets the pod's own sockets be paced, or no longer. A guest's are not ours.
func (p *Pair) pace(pod *network.Pod, on bool) error {
	var paced []pace.Endpoint
	for _, attached := range p.chains.Endpoints() {
		if on && pod.Forwarder == nil {
			paced = append(paced, pace.Endpoint{Number: attached.Number, Path: pod.Path()})
		}
	}
	return p.pacer.Apply(paced)
}

// PathsOf are the indexes of the paths of a transfer's subflows, by their local ends,
// as the uplink half of the sender's node knows them.
func (p *Pair) PathsOf(t *Running) (map[netip.AddrPort]int, error) {
	subflows, err := traffic.Subflows(t.Connection)
	if err != nil {
		return nil, t.Why(err)
	}
	flows, err := p.datapaths[0].Flows()
	if err != nil {
		return nil, err
	}
	paths := map[netip.AddrPort]int{}
	for _, subflow := range subflows {
		for _, flow := range flows {
			if flow.Local == subflow.Local && flow.Remote == subflow.Remote {
				paths[subflow.Local] = slices.Index(p.Spec.Paths, flow.Path)
			}
		}
	}
	return paths, nil
}
