// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	rigName  = "bench"
	rigState = "/run/braid-bench"
	linkMbit = 100
	port     = "5001"
)

var pathNames = []string{"blue", "green", "red", "gold"}

// rig is two nodes with a pod each, on which Braid can be turned on and off
// without any control plane.
type rig struct {
	*network.Network
	datapaths []*datapath.Datapath
	builders  []*node.Builder
	pods      []*pathmanager.Namespace
	stop      func() error
	links     int
	weights   map[string]int32 // of paths; those that are not here have 1
}

// mode is one way to send a connection's subflows over the links.
type mode struct {
	name      string
	subflows  bool // one for each link, else one
	multipath bool // the nodes' routes have one next hop for each link
	braid     bool
}

var (
	single    = mode{name: "single"}
	plain     = mode{name: "plain", subflows: true}
	multipath = mode{name: "multipath", subflows: true, multipath: true}
	braid     = mode{name: "braid", subflows: true, braid: true}
	turns     = mode{name: "turns", braid: true} // first subflows alone
)

// newRig builds a rig, and removes what a killed run left.
func newRig(ctx context.Context, links int) (*rig, error) {
	return newRigOf(ctx, network.Spec{Paths: pathNames[:links], LinkMbit: linkMbit, PodsPerNode: 1})
}

// newRigOf builds a rig of two nodes whose first pods or guests are used.
func newRigOf(ctx context.Context, spec network.Spec) (*rig, error) {
	if err := removeRig(); err != nil {
		return nil, err
	}
	spec.Name, spec.Nodes = rigName, 2
	r := &rig{links: len(spec.Paths), stop: func() error { return nil }}
	if err := r.build(ctx, spec); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

func removeRig() error {
	err := network.Teardown(rigName)
	if unmountErr := unix.Unmount(rigState, unix.MNT_DETACH); unmountErr != nil && !errors.Is(unmountErr, unix.EINVAL) && !errors.Is(unmountErr, unix.ENOENT) {
		err = errors.Join(err, fmt.Errorf("unmounting %s: %w", rigState, unmountErr))
	}
	return errors.Join(err, os.RemoveAll(rigState), os.RemoveAll(podState()))
}

func podState() string { return rigState + "-pods" }

func (r *rig) build(ctx context.Context, spec network.Spec) (err error) {
	if err := os.MkdirAll(rigState, 0o700); err != nil {
		return err
	}
	if err := unix.Mount("bpf", rigState, "bpf", 0, ""); err != nil {
		return fmt.Errorf("mounting a BPF file system: %w", err)
	}
	if r.Network, err = network.Build(spec); err != nil {
		return err
	}
	for _, node := range r.Nodes {
		pins := filepath.Join(rigState, node.NodeName())
		r.datapaths = append(r.datapaths, datapath.Open(datapath.Options{PinPath: pins, Log: logr.Discard()}))
		r.builders = append(r.builders, nodetest.NewBuilder(pins))
		pod, err := pathmanager.Open(node.Pods[0].Path(), pathmanager.Options{StatePath: podState(), Log: logr.Discard()})
		if err != nil {
			return err
		}
		r.pods = append(r.pods, pod)
	}
	return r.serve(ctx)
}

func (r *rig) client() *network.Pod { return r.Nodes[0].Pods[0] }
func (r *rig) server() *network.Pod { return r.Nodes[1].Pods[0] }

// serve answers transfers in the server's pod.
func (r *rig) serve(ctx context.Context) error {
	listener, err := r.server().Listen(ctx, "tcp", ":"+port)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- traffic.Serve(ctx, listener) }()
	r.stop = func() error {
		cancel()
		return <-done
	}
	return nil
}

// close removes the rig, also one that was not finished.
func (r *rig) close() error {
	failed := r.stop()
	for _, pod := range r.pods {
		failed = errors.Join(failed, pod.Restore(context.Background()), pod.Close())
	}
	for i := range r.datapaths {
		failed = errors.Join(failed, r.steer(i, false))
	}
	if r.Network != nil {
		failed = errors.Join(failed, r.Network.Delete())
	}
	return errors.Join(failed, removeRig())
}

// set brings the rig into a mode.
func (r *rig) set(ctx context.Context, m mode) error {
	for i := range r.pods {
		if err := r.setSubflows(ctx, i, m.subflows); err != nil {
			return err
		}
	}
	for i := range r.datapaths {
		if err := r.steer(i, m.braid); err != nil {
			return err
		}
	}
	return r.route(m.multipath)
}

func (r *rig) setSubflows(ctx context.Context, i int, many bool) error {
	if !many {
		return r.pods[i].Restore(ctx)
	}
	return r.pods[i].Configure(ctx, pathmanager.Settings{
		Manager: v1alpha1.SubflowManagerAgent, Count: r.links, Addresses: addressesOf(r.Nodes[i].Pods[0]),
	})
}

func addressesOf(pod *network.Pod) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
}

func (r *rig) steer(i int, on bool) error {
	return r.Nodes[i].Do(func() error {
		if !on {
			return r.datapaths[i].Remove(context.Background())
		}
		state, err := r.state(i)
		if err != nil {
			return err
		}
		return state.Apply(context.Background(), r.datapaths[i], r.builders[i])
	})
}

// state is what an agent of the node would find.
func (r *rig) state(i int) (nodetest.State, error) {
	state := nodetest.State{}
	endpoint := nodetest.Endpoint{Addresses: addressesOf(r.Nodes[i].Pods[0])}
	other := r.Nodes[1-i]
	peer := nodetest.Peer{Name: other.NodeName(), Paths: map[string]nodetest.PeerPath{}}
	for p, name := range r.Spec.Paths {
		index, err := r.Nodes[i].Index(name)
		if err != nil {
			return state, err
		}
		addresses := []netip.Addr{netip.MustParseAddr(other.Address(p, 4)), netip.MustParseAddr(other.Address(p, 6))}
		state.Paths = append(state.Paths, nodetest.Path{Name: name, Interface: index, Up: true})
		endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(name), Weight: max(1, r.weights[name])})
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[name] = nodetest.PeerPath{Addresses: addresses, Up: true}
	}
	state.Peers, state.Endpoints = []nodetest.Peer{peer}, []nodetest.Endpoint{endpoint}
	return state, nil
}

// route gives the nodes' IPv4 routes to each other's pods one next hop for each
// link, chosen by a hash over addresses and ports, or one next hop in all.
func (r *rig) route(many bool) error {
	for i, node := range r.Nodes {
		other, hops := r.Nodes[1-i], []string{"route", "replace", r.Nodes[1-i].PodCIDR(4)}
		for p, name := range r.Spec.Paths {
			if p > 0 && !many {
				break
			}
			hops = append(hops, "nexthop", "via", other.Address(p, 4), "dev", name)
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

// A transfer is long enough for a steady state after what is left out.
const (
	duration = 2500 * time.Millisecond
	warmup   = 700 * time.Millisecond
)

// transfer runs one transfer from pod to pod.
func (r *rig) transfer(ctx context.Context, version int, options traffic.Options) (*traffic.Result, error) {
	address := net.JoinHostPort(r.server().Address(version), port)
	ctx, cancel := context.WithTimeout(ctx, options.Duration+time.Minute)
	defer cancel()
	result, err := traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
		return r.client().Dial(ctx, "tcp", address)
	}, options)
	if err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	return result, nil
}

// intact is an error unless all connections ended well as MPTCP ones.
func intact(result *traffic.Result) error {
	if result.Failed > 0 || !result.Multipath {
		return fmt.Errorf("a connection broke or was not MPTCP: %s", strings.Join(result.Errors, "; "))
	}
	return nil
}
