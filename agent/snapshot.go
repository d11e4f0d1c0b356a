// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// snapshot is what the API server says that concerns this node, or said to the last
// agent.
type snapshot struct {
	at            time.Time                 // when it was read
	saved         bool                      // by the last agent: nothing to be published
	plan          *v1alpha1.MPTCPNodePlan   // nil when there is none
	own           *v1alpha1.MPTCPNodeStatus // of the node's MPTCPNode; nil where that does not exist
	nodeUID       string
	nodeAddresses []netip.Addr
	pods          paths.OwnPods
	peers         []paths.Peer
}

func (a *Agent) read(ctx context.Context) (*snapshot, error) {
	now := time.Now()
	known, fromSaved, err := a.source.read(ctx)
	if err != nil {
		return nil, err
	}
	self := slices.IndexFunc(known.Nodes, func(node v1alpha1.MPTCPNode) bool { return node.Name == a.options.NodeName })
	read := &snapshot{
		at: now, saved: fromSaved, plan: known.Plan, nodeUID: string(known.Node.UID),
		nodeAddresses: internalAddresses(&known.Node), peers: a.peersOf(known.Nodes),
	}
	if self >= 0 {
		read.pods, read.own = paths.OwnPodsOf(&known.Nodes[self]), &known.Nodes[self].Status
	}
	return read, nil
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

// peersOf goes by what the controller confirmed. While it has confirmed nothing of any
// node, because it is of an earlier version, what agents say is believed; of the nodes
// that were there then it is until they are judged, so that the first run of a newer
// controller interrupts nothing. Agents cannot bring that back: they cannot write specs.
func (a *Agent) peersOf(nodes []v1alpha1.MPTCPNode) (peers []paths.Peer) {
	judged := slices.ContainsFunc(nodes, func(node v1alpha1.MPTCPNode) bool { return node.Spec != nil })
	if !judged {
		a.believed = map[string]bool{}
	}
	for i := range nodes {
		node := &nodes[i]
		if !judged {
			a.believed[node.Name] = true
		} else if node.Spec != nil {
			delete(a.believed, node.Name)
		}
		switch {
		case node.Name == a.options.NodeName:
		case node.Spec == nil && a.believed[node.Name]:
			peers = append(peers, paths.UnconfirmedPeerOf(node))
		default:
			peers = append(peers, paths.PeerOf(node))
		}
	}
	return peers
}

func (s *snapshot) planPaths() []v1alpha1.PlanPath {
	if s.plan == nil {
		return nil
	}
	return s.plan.Spec.Paths
}
