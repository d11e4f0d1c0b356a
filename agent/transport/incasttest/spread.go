// SPDX-License-Identifier: Apache-2.0

package incasttest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// Spread has all connections of MPTCP between pods of a network use all of its paths: a
// subflow on each, with their packets in the network's overlay where it has one.
type Spread struct {
	network   *network.Network
	datapaths []*datapath.Datapath
	builders  []*node.Builder
	pods      []*pathmanager.Namespace
}

// SpreadOver begins it. Pins are in a directory of a BPF file system, which pods' states, in
// the other one, need not be.
func SpreadOver(ctx context.Context, n *network.Network, pins, states string) (*Spread, error) {
	s := &Spread{network: n}
	for _, node := range n.Nodes {
		directory := filepath.Join(pins, node.NodeName())
		s.datapaths = append(s.datapaths, datapath.Open(datapath.Options{PinPath: directory, FlowEntries: 4096, Log: logr.Discard()}))
		s.builders = append(s.builders, nodetest.NewBuilder(directory))
	}
	for i, node := range n.Nodes {
		if err := errors.Join(s.steer(ctx, i), s.open(ctx, node.Pods, states)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// Close ends it.
func (s *Spread) Close() (failed error) {
	for _, pod := range s.pods {
		failed = errors.Join(failed, pod.Restore(context.Background()), pod.Close())
	}
	for i, node := range s.network.Nodes {
		failed = errors.Join(failed, node.Do(func() error { return s.datapaths[i].Remove(context.Background()) }))
	}
	return failed
}

// open has the pods' connections get a subflow for each path at once.
func (s *Spread) open(ctx context.Context, pods []*network.Pod, states string) error {
	for _, pod := range pods {
		opener, err := pathmanager.Open(pod.Path(), pathmanager.Options{StatePath: states, Log: logr.Discard()})
		if err != nil {
			return err
		}
		s.pods = append(s.pods, opener)
		if err := opener.Configure(ctx, pathmanager.Settings{
			Manager: v1alpha1.SubflowManagerAgent, Count: len(s.network.Spec.Paths), Addresses: addressesOf(pod),
		}); err != nil {
			return err
		}
	}
	return nil
}

func (s *Spread) steer(ctx context.Context, i int) error {
	state, err := s.state(i)
	if err != nil {
		return err
	}
	return s.network.Nodes[i].Do(func() error { return state.Apply(ctx, s.datapaths[i], s.builders[i]) })
}

// state is what an agent of the node would find.
func (s *Spread) state(i int) (state nodetest.State, err error) {
	here := s.network.Nodes[i]
	for _, path := range s.network.Spec.Paths {
		index, err := here.Index(path)
		if err != nil {
			return state, err
		}
		state.Paths = append(state.Paths, nodetest.Path{Name: path, Interface: index, Up: true})
	}
	for j, other := range s.network.Nodes {
		if i != j {
			state.Peers = append(state.Peers, s.peer(other))
		}
	}
	for _, pod := range here.Pods {
		endpoint, err := s.endpoint(pod)
		if err != nil {
			return state, err
		}
		state.Endpoints = append(state.Endpoints, endpoint)
	}
	state.Tunnels, err = TunnelsOf(here)
	return state, err
}

func (s *Spread) peer(of *network.Node) nodetest.Peer {
	peer := nodetest.Peer{Name: of.NodeName(), Paths: map[string]nodetest.PeerPath{}}
	for i, path := range s.network.Spec.Paths {
		addresses := []netip.Addr{netip.MustParseAddr(of.Address(i, 4)), netip.MustParseAddr(of.Address(i, 6))}
		peer.Addresses = append(peer.Addresses, addresses...)
		peer.Paths[path] = nodetest.PeerPath{Addresses: addresses, Up: true}
	}
	return peer
}

func (s *Spread) endpoint(pod *network.Pod) (nodetest.Endpoint, error) {
	index, err := pod.Node.Index(pod.HostInterface)
	endpoint := nodetest.Endpoint{Addresses: addressesOf(pod), Interface: index}
	for _, path := range s.network.Spec.Paths {
		endpoint.Paths = append(endpoint.Paths, v1alpha1.PathWeight{Path: v1alpha1.PathName(path), Weight: 1})
	}
	return endpoint, err
}

func addressesOf(pod *network.Pod) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)}
}

// TunnelsOf are those that an agent finds on a node.
func TunnelsOf(of *network.Node) ([]paths.Tunnel, error) {
	namespace, err := netns.GetFromPath(of.Path())
	if err != nil {
		return nil, fmt.Errorf("opening the network namespace of %s: %w", of.Name, err)
	}
	defer namespace.Close()
	found, err := paths.Open(namespace)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	resolution, err := found.Resolve(paths.Query{})
	return resolution.Tunnels, err
}
