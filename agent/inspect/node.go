// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/mptcpnl"
)

// Node tells of all pods of a node: of those with rules what the programs recorded,
// of the others what their own sockets and the uplinks' flows tell. It is safe for
// concurrent use.
type Node struct {
	*Pins
	// Flows lists the flows of the uplinks; it must be safe for concurrent use.
	Flows func() ([]datapath.Flow, error)

	mutex sync.Mutex
	pods  []Pod
}

// Pod is a pod without rules.
type Pod struct {
	// Endpoint is its namespace/name.
	Endpoint string
	// Namespace is a path that can be opened to enter its network namespace.
	Namespace string
}

var _ Source = (*Node)(nil)

// SetPods says which pods have no rules.
func (n *Node) SetPods(pods []Pod) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.pods = pods
}

// Subflows lists the subflows of all pods, sorted as those of Pins, with the paths that
// their packets take. A pod that has just gone has none.
func (n *Node) Subflows() ([]agentapi.Subflow, error) {
	subflows, err := n.Pins.Subflows()
	if err != nil {
		return nil, err
	}
	n.mutex.Lock()
	pods := n.pods
	n.mutex.Unlock()
	if len(pods) == 0 && len(subflows) == 0 {
		return nil, nil
	}
	flows, err := n.Flows()
	if err != nil {
		return nil, err
	}
	index := datapath.IndexFlows(flows)
	for _, pod := range pods {
		sockets, err := socketsIn(pod.Namespace)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the sockets of %s: %w", pod.Endpoint, err)
		}
		subflows = append(subflows, ofSockets(pod.Endpoint, sockets, index)...)
	}
	for i := range subflows {
		noteWays(&subflows[i], index)
	}
	slices.SortFunc(subflows, compareSubflows)
	return subflows, nil
}

// noteWays says so where another path stands in for the flow's own, and where what comes in
// takes another one than what leaves.
func noteWays(s *agentapi.Subflow, flows datapath.FlowIndex) {
	flow := flows.Find(s.Local, s.Remote)
	if flow == nil || flow.Ended {
		return
	}
	if flow.StandIn != "" {
		s.Path, s.StandIn = flow.Path, flow.StandIn
	}
	if carrier := s.Carrier(); carrier != "" && flow.Incoming != carrier {
		s.Incoming = flow.Incoming
	}
}

// mostSockets are shown of one pod, so that a pod with any number of connections does
// not take the agent's memory when somebody looks.
const mostSockets = 16384

func socketsIn(namespace string) ([]mptcpnl.Subflow, error) {
	diagnostics, err := mptcpnl.DialDiagnosticsAt(namespace)
	if err != nil {
		return nil, err
	}
	defer diagnostics.Close()
	return diagnostics.Subflows(mostSockets)
}

// ends of a subflow as its pod sees them.
type ends struct{ local, remote netip.AddrPort }

// pathOf is the path of a socket's flow; empty where none lives.
func pathOf(flows datapath.FlowIndex, s *mptcpnl.Subflow) string {
	if flow := flows.Find(s.Local, s.Remote); flow != nil && !flow.Ended {
		return flow.Path
	}
	return ""
}

// ofSockets are the established subflows of one pod.
func ofSockets(endpoint string, sockets []mptcpnl.Subflow, flows datapath.FlowIndex) (subflows []agentapi.Subflow) {
	connections := connectionsOf(sockets)
	for i := range sockets {
		s := &sockets[i]
		if !s.Established {
			continue
		}
		tokens := connections[s.Token]
		subflows = append(subflows, agentapi.Subflow{
			Endpoint: endpoint, Token: tokens.responder, InitiatorToken: tokens.initiator,
			Local: s.Local, Remote: s.Remote, Path: pathOf(flows, s), Backup: s.BackupWanted || s.BackupAsked,
			RTTMicroseconds: uint64(s.TCP.RTT.Microseconds()),
			Sent:            agentapi.Traffic{Bytes: s.TCP.SentBytes}, Received: agentapi.Traffic{Bytes: s.TCP.ReceivedBytes},
		})
	}
	return subflows
}

type tokenPair struct{ responder, initiator agentapi.Token }

// connectionsOf finds the tokens of connections by the pod's own. The peer's is
// known where the pod joined a subflow.
func connectionsOf(sockets []mptcpnl.Subflow) map[uint32]tokenPair {
	peers, begun, sure := map[uint32]uint32{}, map[uint32]bool{}, map[uint32]bool{}
	for i := range sockets {
		s := &sockets[i]
		peers[s.Token] = cmp.Or(s.RemoteToken, peers[s.Token])
		// The first subflow tells who began; without it, who joined most likely did.
		if s.First || !sure[s.Token] {
			begun[s.Token] = s.Initiator || begun[s.Token] && !s.First
		}
		sure[s.Token] = sure[s.Token] || s.First
	}
	pairs := map[uint32]tokenPair{}
	for own, peer := range peers {
		pairs[own] = tokenPair{responder: agentapi.Token(own), initiator: agentapi.Token(peer)}
		if begun[own] {
			pairs[own] = tokenPair{responder: agentapi.Token(peer), initiator: agentapi.Token(own)}
		}
	}
	return pairs
}
