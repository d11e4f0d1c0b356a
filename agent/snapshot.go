// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// snapshot is what the API server says that concerns this node, or said to the last
// agent.
type snapshot struct {
	saved         bool                    // by the last agent: nothing to be published
	plan          *v1alpha1.MPTCPNodePlan // nil when there is none
	unpublished   bool                    // the node's MPTCPNode does not exist
	nodeUID       string
	nodeAddresses []netip.Addr
	peers         []paths.Peer
}

func (a *Agent) read(ctx context.Context) (*snapshot, error) {
	known, fromSaved, err := a.source.read(ctx)
	if err != nil {
		return nil, err
	}
	return &snapshot{
		saved: fromSaved, plan: known.Plan, nodeUID: string(known.Node.UID),
		nodeAddresses: internalAddresses(&known.Node), peers: a.peersOf(known.Nodes),
		unpublished: !slices.ContainsFunc(known.Nodes, func(node v1alpha1.MPTCPNode) bool { return node.Name == a.options.NodeName }),
	}, nil
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
			a.log.Error(err, "failed to read some addresses of another node; using the rest", "peer", nodes[i].Name)
		}
		peers = append(peers, peer)
	}
	return peers
}

func (s *snapshot) planPaths() []v1alpha1.PlanPath {
	if s.plan == nil {
		return nil
	}
	return s.plan.Spec.Paths
}
