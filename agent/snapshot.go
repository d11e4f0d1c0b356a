// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// snapshot is what the API server says that concerns this node.
type snapshot struct {
	plan          *v1alpha1.MPTCPNodePlan // nil when there is none
	unpublished   bool                    // the node's MPTCPNode does not exist
	nodeUID       string
	nodeAddresses []netip.Addr
	peers         []paths.Peer
}

func (a *Agent) read(ctx context.Context) (*snapshot, error) {
	s := &snapshot{plan: &v1alpha1.MPTCPNodePlan{}}
	key := client.ObjectKey{Name: a.options.NodeName}
	if err := a.client.Get(ctx, key, s.plan); apierrors.IsNotFound(err) {
		s.plan = nil
	} else if err != nil {
		return nil, fmt.Errorf("failed to read the node's plan: %w", err)
	}
	var node corev1.Node
	if err := a.client.Get(ctx, key, &node); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("failed to read the Node: %w", err)
	}
	s.nodeUID = string(node.UID)
	s.nodeAddresses = internalAddresses(&node)
	var nodes v1alpha1.MPTCPNodeList
	if err := a.client.List(ctx, &nodes); err != nil {
		return nil, fmt.Errorf("failed to read the other nodes: %w", err)
	}
	s.peers = a.peersOf(nodes.Items)
	s.unpublished = !slices.ContainsFunc(nodes.Items, func(node v1alpha1.MPTCPNode) bool { return node.Name == key.Name })
	return s, nil
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
