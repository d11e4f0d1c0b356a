// SPDX-License-Identifier: Apache-2.0

package socketimport

import (
	"maps"
	"net/netip"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/mptcpnl"
)

// sockets are what a pod has, as the programs would know it.
type sockets struct {
	subflows    []socket
	connections []connection
}

// socket is a subflow.
type socket struct {
	local, remote netip.AddrPort
	record        record
}

// tokens are those of a connection; the responder's is the initiator's where only
// that is known.
type tokens struct{ responder, initiator uint32 }

// combine makes records of established subflows and their connections. peers are
// the peers' tokens by those of this host, as far as they are known.
func combine(subflows []mptcpnl.Subflow, connections []mptcpnl.Connection, peers map[uint32]uint32, now uint64) sockets {
	known := tokensOf(subflows, peers)
	var all sockets
	count := map[uint32]uint32{}
	for _, subflow := range subflows {
		if !subflow.Established || subflow.Token == 0 {
			continue
		}
		count[subflow.Token]++
		all.subflows = append(all.subflows, socket{subflow.Local, subflow.Remote, makeRecord(&subflow, known[subflow.Token], now)})
	}
	for i := range connections {
		if local := connections[i].Token; count[local] > 0 {
			all.connections = append(all.connections, makeConnection(&connections[i], known[local], count[local], now))
		}
	}
	return all
}

// tokensOf finds the tokens of each connection, by the token that this host knows.
func tokensOf(subflows []mptcpnl.Subflow, peers map[uint32]uint32) map[uint32]tokens {
	remote, begun := map[uint32]uint32{}, map[uint32]bool{}
	maps.Copy(remote, peers)
	for _, subflow := range subflows {
		if subflow.RemoteToken != 0 {
			remote[subflow.Token] = subflow.RemoteToken
		}
		begun[subflow.Token] = begun[subflow.Token] || subflow.Initiator
	}
	for _, subflow := range subflows {
		if subflow.First { // it is the one that tells; without it any subflow that was opened here does
			begun[subflow.Token] = subflow.Initiator
		}
	}
	known := map[uint32]tokens{}
	for local, here := range begun {
		switch {
		case !here:
			known[local] = tokens{responder: local, initiator: remote[local]}
		case remote[local] != 0:
			known[local] = tokens{responder: remote[local], initiator: local}
		default:
			known[local] = tokens{responder: local, initiator: local}
		}
	}
	return known
}

func makeRecord(s *mptcpnl.Subflow, known tokens, now uint64) record {
	r := record{
		Token: known.responder, InitiatorToken: known.initiator, Path: endpoint.PathUnknown, Role: roleOf(s.Initiator),
		Known: endpoint.KnownMPTCP | endpoint.KnownAnswered | endpoint.KnownHandshake, Seeded: 1,
		SeededRtt: uint32(s.TCP.RTT.Microseconds()), FirstSeen: now, LastSeen: now,
	}
	if !s.First {
		r.Known |= endpoint.KnownJoin
	}
	if s.BackupWanted {
		r.Backup |= 1 << endpoint.FromEndpoint
	}
	if s.BackupAsked {
		r.Backup |= 1 << endpoint.ToEndpoint
	}
	carried := [2]uint64{s.TCP.SentBytes, s.TCP.ReceivedBytes}
	scales := [2]uint8{s.TCP.ReceiveScale, s.TCP.SendScale}
	for direction := range r.Traffic {
		r.Traffic[direction].Position, r.Traffic[direction].Counted = carried[direction], carried[direction]
		r.Traffic[direction].WindowScale = 1
		if s.TCP.Scaled {
			r.Traffic[direction].WindowScale += scales[direction]
		}
	}
	return r
}

func roleOf(initiator bool) uint8 {
	if initiator {
		return endpoint.EndpointInitiated
	}
	return endpoint.EndpointAnswered
}

func makeConnection(found *mptcpnl.Connection, known tokens, subflows uint32, now uint64) connection {
	c := connection{
		Token: known.responder, InitiatorToken: known.initiator, FirstSeen: now, Subflows: subflows,
		Role: roleOf(found.Token == known.initiator),
	}
	if found.SequencesKnown {
		c.InitialDataSequence = [2]uint64{found.FirstSent, found.FirstReceived}
		c.DataPosition = [2]uint64{found.SentBytes, found.ReceivedBytes}
		c.Sent = c.DataPosition
		c.SequenceKnown = 1<<endpoint.FromEndpoint | 1<<endpoint.ToEndpoint
	}
	return c
}

// complete adds to a record of the programs what they do not know, and says
// whether there was anything. It is then judged by the rules anew.
func complete(known, imported *record) bool {
	lacksToken := known.Token == 0 || known.Token == known.InitiatorToken && known.Token != imported.Token
	if known.Known&endpoint.KnownSYN != 0 || !lacksToken {
		return false
	}
	if known.Token == 0 {
		known.Reported = 0 // what was reported without a token is reported with it
	}
	known.Token, known.InitiatorToken = imported.Token, imported.InitiatorToken
	known.Known |= imported.Known
	known.Role, known.Seeded, known.SeededRtt, known.Word = imported.Role, imported.Seeded, imported.SeededRtt, 0
	known.Backup |= imported.Backup &^ toldBackup(known)
	for direction := range known.Traffic {
		known.Traffic[direction].WindowScale = imported.Traffic[direction].WindowScale
	}
	return true
}

// toldBackup are the directions in which the programs told an end that the other asks
// for backup. Its socket shows that as the other's own wish, which it would remain when
// the rule is gone.
func toldBackup(known *record) (directions uint8) {
	for direction, told := range known.BackupState.Told {
		if told != 0 {
			directions |= 1 << direction
		}
	}
	return directions
}

// completeConnection adds what the programs do not know, and says whether there
// was anything. An alias leads to a connection about which they know more.
func completeConnection(known, imported *connection) bool {
	if known.Token != imported.Token {
		return false
	}
	changed := false
	if known.InitiatorToken == 0 && imported.InitiatorToken != 0 {
		known.InitiatorToken, changed = imported.InitiatorToken, true
	}
	for direction := range known.InitialDataSequence {
		bit := uint8(1) << direction
		if known.SequenceKnown&bit != 0 || imported.SequenceKnown&bit == 0 {
			continue
		}
		known.InitialDataSequence[direction] = imported.InitialDataSequence[direction]
		known.DataPosition[direction] = imported.DataPosition[direction]
		known.SequenceKnown, changed = known.SequenceKnown|bit, true
	}
	return changed
}

// key is that of the subflow's record. Addresses and ports are in network byte
// order, and IPv4 addresses in their mapped form.
func (s *socket) key(number uint32) (key recordKey) {
	key.Endpoint = number
	key.Local.Word, key.LocalPort = bpf.Words(s.local.Addr()), bpf.Port(s.local.Port())
	key.Remote.Word, key.RemotePort = bpf.Words(s.remote.Addr()), bpf.Port(s.remote.Port())
	return key
}
