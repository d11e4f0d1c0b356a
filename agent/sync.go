// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// news is what the API server says that concerns this node.
type news struct {
	plan          *v1alpha1.MPTCPNodePlan // nil when there is none
	unpublished   bool                    // the node's MPTCPNode does not exist
	nodeUID       string
	nodeAddresses []netip.Addr
	peers         []paths.Peer
}

// sync does at once what is urgent, that a NIC which went down is avoided, and
// hands over the rest.
func (a *Agent) sync(ctx context.Context) error {
	news, err := a.read(ctx)
	if err != nil {
		return err
	}
	resolution, err := a.node.Resolve(paths.Query{
		Paths: news.planPaths(), NodeAddresses: news.nodeAddresses, Peers: news.peers,
	})
	if err != nil {
		return fmt.Errorf("finding the NICs of the paths: %w", err)
	}
	a.health.plan(news, resolution.Paths)
	hintErr := a.hints.plan(news, resolution.Paths)
	datapathErr := errors.Join(hintErr, a.datapath.Apply(datapathState(news, resolution, a.toEndpoint)))
	_, detourErr := a.detours.Apply(paths.State{Paths: resolution.Paths, Peers: news.peers})
	r := round{news: news, resolution: resolution, attachMode: a.datapath.AttachMode(), failed: errors.Join(datapathErr, detourErr)}
	a.nodeRounds.put(r)
	a.podRounds.put(r)
	return r.failed
}

func (a *Agent) read(ctx context.Context) (*news, error) {
	n := &news{plan: &v1alpha1.MPTCPNodePlan{}}
	key := client.ObjectKey{Name: a.options.NodeName}
	if err := a.client.Get(ctx, key, n.plan); apierrors.IsNotFound(err) {
		n.plan = nil
	} else if err != nil {
		return nil, fmt.Errorf("reading the node's plan: %w", err)
	}
	var node corev1.Node
	if err := a.client.Get(ctx, key, &node); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading the Node: %w", err)
	}
	n.nodeUID = string(node.UID)
	n.nodeAddresses = internalAddresses(&node)
	var nodes v1alpha1.MPTCPNodeList
	if err := a.client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("reading the other nodes: %w", err)
	}
	n.peers = a.peersOf(nodes.Items)
	n.unpublished = !slices.ContainsFunc(nodes.Items, func(node v1alpha1.MPTCPNode) bool { return node.Name == key.Name })
	return n, nil
}

func internalAddresses(node *corev1.Node) (addresses []netip.Addr) {
	for _, address := range node.Status.Addresses {
		if address.Type != corev1.NodeInternalIP {
			continue
		}
		if parsed, err := netip.ParseAddr(address.Address); err == nil {
			addresses = append(addresses, parsed.Unmap())
		}
	}
	return addresses
}

// peersOf leaves out what cannot be read: one bad node must not keep the others
// from being reached.
func (a *Agent) peersOf(nodes []v1alpha1.MPTCPNode) (peers []paths.Peer) {
	for i := range nodes {
		if nodes[i].Name == a.options.NodeName {
			continue
		}
		peer, err := paths.PeerOf(&nodes[i])
		if err != nil {
			a.log.Error(err, "using what can be read of another node", "peer", nodes[i].Name)
		}
		peers = append(peers, peer)
	}
	return peers
}

func (n *news) planPaths() []v1alpha1.PlanPath {
	if n.plan == nil {
		return nil
	}
	return n.plan.Spec.Paths
}

func (n *news) planEndpoints() []v1alpha1.PlanEndpoint {
	if n.plan == nil {
		return nil
	}
	return n.plan.Spec.Endpoints
}

func (a *Agent) toEndpoint(endpoint *v1alpha1.PlanEndpoint) datapath.Endpoint {
	return a.origins.add(a.hints.endpoint(endpoint), endpoint.UID)
}

// datapathState leaves out paths that have no NIC here. A NIC that is there and
// cannot be used stays attached: the cluster network may route through it.
func datapathState(n *news, resolution paths.Resolution, toEndpoint func(*v1alpha1.PlanEndpoint) datapath.Endpoint) datapath.State {
	state := datapath.State{Peers: n.peers}
	for _, path := range resolution.Paths {
		if path.Index != 0 {
			state.Paths = append(state.Paths, datapath.Path{Name: path.Name, Interface: path.Index, Up: path.Usable})
		}
	}
	if len(state.Paths) == 0 {
		return datapath.State{}
	}
	for _, uplink := range resolution.Uplinks {
		state.Uplinks = append(state.Uplinks, uplink.Index)
	}
	for _, endpoint := range n.planEndpoints() {
		if len(endpoint.Paths) > 0 {
			state.Endpoints = append(state.Endpoints, toEndpoint(&endpoint))
		}
	}
	return state
}

func endpointAddresses(endpoint *v1alpha1.PlanEndpoint) (addresses []netip.Addr) {
	for _, text := range endpoint.Addresses {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address.Unmap())
		}
	}
	return addresses
}

// concerns is false for a change that only this agent's own writes, or the
// server's bookkeeping, make.
func concerns(before, after any) bool {
	switch after := after.(type) {
	case *v1alpha1.MPTCPNodePlan:
		before, ok := before.(*v1alpha1.MPTCPNodePlan)
		return !ok || before.Generation != after.Generation || before.UID != after.UID
	case *v1alpha1.MPTCPNode:
		before, ok := before.(*v1alpha1.MPTCPNode)
		return !ok || !apiequality.Semantic.DeepEqual(ways(before.Status.Paths), ways(after.Status.Paths)) ||
			!apiequality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses)
	case *corev1.Node:
		before, ok := before.(*corev1.Node)
		return !ok || !apiequality.Semantic.DeepEqual(before.Status.Addresses, after.Status.Addresses)
	}
	return true
}

// ways are a node's paths without what its agent measures there.
func ways(measured []v1alpha1.NodePath) []v1alpha1.NodePath {
	ways := make([]v1alpha1.NodePath, 0, len(measured))
	for _, path := range measured {
		ways = append(ways, v1alpha1.NodePath{
			Name: path.Name, Interface: path.Interface, Addresses: path.Addresses, State: path.State, Message: path.Message,
		})
	}
	return ways
}
