// SPDX-License-Identifier: Apache-2.0

// Package socketimport tells the programs of the endpoint half of connections that are
// older than they: from the pod's own sockets it makes the records that the
// programs would have made from the SYNs. So selectors by token hold for these
// connections too, and a rate limit can lower their windows.
//
// Where the iterator over sockets does not work, one thing is not known: the
// responder's token of a connection that the pod began and that never had a second
// subflow. Such a connection goes by the initiator's token alone.
package socketimport

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/mptcpnl"
)

// Pod is a pod whose packets run through the programs.
type Pod struct {
	// Namespace is a path that can be opened to enter its network namespace.
	Namespace string
	// Number is that of the endpoint in the programs' maps.
	Number uint32
	// Interface is the index of the host's end of its interface.
	Interface int
}

// Maps are the programs' maps that are written. They are safe for concurrent use.
type Maps struct {
	subflows, connections, attachments, overflow *ebpf.Map
	tokens                                       *peerTokens
	tokensErr                                    error // why there are none
}

// Open opens the maps that are pinned in a directory.
func Open(pins string) (*Maps, error) {
	m := &Maps{}
	for name, into := range map[string]**ebpf.Map{
		"subflows": &m.subflows, "mptcp_connections": &m.connections,
		"attachments": &m.attachments, "attachments_overflow": &m.overflow,
	} {
		var err error
		if *into, err = ebpf.LoadPinnedMap(filepath.Join(pins, name), nil); err != nil {
			return nil, errors.Join(fmt.Errorf("opening map %s: %w", name, err), m.Close())
		}
	}
	m.tokens, m.tokensErr = openPeerTokens()
	return m, nil
}

// Close closes the maps.
func (m *Maps) Close() error {
	failed := m.tokens.close()
	for _, opened := range []*ebpf.Map{m.subflows, m.connections, m.attachments, m.overflow} {
		if opened != nil {
			failed = errors.Join(failed, opened.Close())
		}
	}
	return failed
}

// Result counts records of subflows.
type Result struct {
	// Made are new ones. Completed are those that the programs had begun in the
	// middle of a subflow, which had no token until now.
	Made, Completed int
}

// Import makes records of the pod's established subflows, where there are none yet,
// and completes those that began in the middle. What the programs know from a SYN
// is not touched. It can be called again at any time; once before the pod gets its
// first chain and once after leaves no connection out. It does what it can also
// where the peers' tokens cannot be read, and then returns an error.
func (m *Maps) Import(pod Pod) (Result, error) {
	result, err := m.importSockets(pod)
	if err := errors.Join(err, m.tokensErr); err != nil {
		return result, fmt.Errorf("noting the connections of %s: %w", pod.Namespace, err)
	}
	return result, nil
}

func (m *Maps) importSockets(pod Pod) (result Result, err error) {
	all, err := m.look(pod)
	if err != nil {
		return result, err
	}
	for _, c := range all.connections {
		if err := m.writeConnection(pod.Number, c); err != nil {
			return result, err
		}
	}
	for i := range all.subflows {
		if err := m.writeSubflow(pod.Number, &all.subflows[i], &result); err != nil {
			return result, err
		}
	}
	if result.Completed > 0 {
		return result, m.judgeAgain(pod.Interface)
	}
	return result, nil
}

// mostSockets are noted of one pod: half of the records that there are. What is beyond
// is found by its packets.
const mostSockets = 32768

// look lists what the pod's namespace has.
func (m *Maps) look(pod Pod) (sockets, error) {
	file, err := os.Open(pod.Namespace)
	if err != nil {
		return sockets{}, fmt.Errorf("opening network namespace: %w", err)
	}
	defer file.Close()
	diagnostics, err := mptcpnl.DialDiagnostics(int(file.Fd()))
	if err != nil {
		return sockets{}, err
	}
	defer diagnostics.Close()
	subflows, err := diagnostics.Subflows(mostSockets)
	if err != nil {
		return sockets{}, err
	}
	connections, err := diagnostics.Connections(mostSockets)
	if err != nil {
		return sockets{}, err
	}
	peers, err := m.tokens.read(file)
	if err != nil {
		return sockets{}, err
	}
	return combine(subflows, connections, peers, uint64(bpf.Now())), nil
}

func (m *Maps) writeSubflow(number uint32, s *socket, result *Result) error {
	key := s.key(number)
	err := m.subflows.Update(key, s.record, ebpf.UpdateNoExist)
	switch {
	case err == nil:
		result.Made++
		return nil
	case !errors.Is(err, ebpf.ErrKeyExist):
		return fmt.Errorf("writing a subflow: %w", err)
	}
	var known record
	err = m.subflows.Lookup(key, &known)
	if err == nil && complete(&known, &s.record) {
		if err = m.subflows.Update(key, known, ebpf.UpdateExist); err == nil {
			result.Completed++
		}
	}
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) { // it was forgotten just now
		return fmt.Errorf("completing a subflow: %w", err)
	}
	return nil
}

// writeConnection writes a connection, and the alias by which its other token
// leads to it.
func (m *Maps) writeConnection(number uint32, c connection) error {
	key := connectionKey{Endpoint: number, Token: c.Token}
	err := m.connections.Update(key, c, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		err = m.completeConnection(key, c)
	}
	if err == nil && c.InitiatorToken != 0 && c.InitiatorToken != c.Token {
		err = m.writeAlias(number, c)
	}
	if err != nil {
		return fmt.Errorf("writing a connection: %w", err)
	}
	return nil
}

func (m *Maps) completeConnection(key connectionKey, c connection) error {
	var known connection
	err := m.connections.Lookup(key, &known)
	if err == nil && completeConnection(&known, &c) {
		err = m.connections.Update(key, known, ebpf.UpdateExist)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) { // it was forgotten just now
		return nil
	}
	return err
}

// writeAlias replaces what was known by the initiator's token alone.
func (m *Maps) writeAlias(number uint32, c connection) error {
	alias := connection{Token: c.Token, Role: c.Role, FirstSeen: c.FirstSeen}
	return m.connections.Put(connectionKey{Endpoint: number, Token: c.InitiatorToken}, alias)
}

// What the maps hold.
type (
	record        = endpoint.FromEndpointSubflow
	recordKey     = endpoint.FromEndpointSubflowKey
	connection    = endpoint.FromEndpointMptcpConnection
	connectionKey = endpoint.FromEndpointMptcpConnectionKey
	attachment    = endpoint.FromEndpointAttachment
)
