// SPDX-License-Identifier: Apache-2.0

package socketimport

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/mptcpnl"
)

func TestBothTokensAreFoundFromTheSubflowsOfAConnection(t *testing.T) {
	first := func(initiator bool) mptcpnl.Subflow {
		return mptcpnl.Subflow{Token: 1, First: true, Initiator: initiator}
	}
	joined := mptcpnl.Subflow{Token: 1, Initiator: true, RemoteToken: 2}
	accepted := mptcpnl.Subflow{Token: 1}
	tests := map[string]struct {
		subflows []mptcpnl.Subflow
		peers    map[uint32]uint32
		want     tokens
	}{
		"begun here, with another subflow":                   {[]mptcpnl.Subflow{first(true), joined}, nil, tokens{2, 1}},
		"begun here, without one":                            {[]mptcpnl.Subflow{first(true)}, nil, tokens{1, 1}},
		"begun by the peer":                                  {[]mptcpnl.Subflow{first(false), accepted}, nil, tokens{1, 0}},
		"begun by the peer, joined from here too":            {[]mptcpnl.Subflow{joined, first(false)}, nil, tokens{1, 2}},
		"begun here, the first subflow is gone":              {[]mptcpnl.Subflow{joined}, nil, tokens{2, 1}},
		"begun by the peer, the first subflow is gone":       {[]mptcpnl.Subflow{accepted}, nil, tokens{1, 0}},
		"the order of subflows does not matter, begun here":  {[]mptcpnl.Subflow{joined, first(true)}, nil, tokens{2, 1}},
		"subflows of another connection do not lend a token": {[]mptcpnl.Subflow{first(true), {Token: 9, RemoteToken: 8}}, nil, tokens{1, 1}},
		"begun here, the peer's token is known":              {[]mptcpnl.Subflow{first(true)}, map[uint32]uint32{1: 2}, tokens{2, 1}},
		"begun by the peer, whose token is known":            {[]mptcpnl.Subflow{first(false)}, map[uint32]uint32{1: 2}, tokens{1, 2}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tokensOf(test.subflows, test.peers)[1]; got != test.want {
				t.Errorf("the tokens are %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestARecordHoldsWhatTheSocketTells(t *testing.T) {
	subflow := mptcpnl.Subflow{
		Token: 1, Initiator: true, BackupAsked: true, Established: true,
		TCP: mptcpnl.TCPInfo{SendScale: 7, ReceiveScale: 3, Scaled: true, RTT: 40 * time.Millisecond, SentBytes: 100, ReceivedBytes: 200},
	}
	var want record
	want.Token, want.InitiatorToken, want.Path, want.Role, want.Seeded = 2, 1, endpoint.PathUnknown, endpoint.EndpointInitiated, 1
	want.Known = endpoint.KnownMPTCP | endpoint.KnownJoin | endpoint.KnownAnswered | endpoint.KnownHandshake
	want.Backup = 1 << endpoint.ToEndpoint
	want.SeededRtt, want.FirstSeen, want.LastSeen = 40000, 5, 5
	want.Traffic[endpoint.FromEndpoint].WindowScale, want.Traffic[endpoint.FromEndpoint].Position, want.Traffic[endpoint.FromEndpoint].Counted = 4, 100, 100
	want.Traffic[endpoint.ToEndpoint].WindowScale, want.Traffic[endpoint.ToEndpoint].Position, want.Traffic[endpoint.ToEndpoint].Counted = 8, 200, 200
	if got := makeRecord(&subflow, tokens{2, 1}, 5); got != want {
		t.Errorf("the record is\n%+v, want\n%+v", got, want)
	}
}

func TestWindowsWithoutAScaleAreKnownToHaveNone(t *testing.T) {
	subflow := mptcpnl.Subflow{TCP: mptcpnl.TCPInfo{SendScale: 7, ReceiveScale: 3}}
	got := makeRecord(&subflow, tokens{}, 0)
	if got.Traffic[endpoint.FromEndpoint].WindowScale != 1 || got.Traffic[endpoint.ToEndpoint].WindowScale != 1 {
		t.Errorf("the scales are %+v", got.Traffic)
	}
}

func TestOnlyEstablishedSubflowsBecomeRecords(t *testing.T) {
	at := netip.MustParseAddrPort("10.0.0.1:1")
	got := combine([]mptcpnl.Subflow{
		{Token: 1, Local: at, Remote: at}, {Token: 2, Local: at, Remote: at, Established: true}, {Established: true},
	}, []mptcpnl.Connection{{Token: 1}, {Token: 2}}, nil, 0)
	if len(got.subflows) != 1 || len(got.connections) != 1 || got.connections[0].Token != 2 || got.connections[0].Subflows != 1 {
		t.Errorf("they became %+v", got)
	}
}

func reported(r record) record {
	r.Reported = 3
	return r
}

func TestWhatTheProgramsKnowIsNotTouched(t *testing.T) {
	imported := record{Token: 2, InitiatorToken: 1, Known: endpoint.KnownMPTCP, Seeded: 1, Role: endpoint.EndpointInitiated}
	imported.Traffic[0].WindowScale = 4
	begun := func(change func(*record)) record {
		r := record{Word: 77, Path: 3, Reported: 3}
		r.Traffic[0].Bytes = 1000
		change(&r)
		return r
	}
	completed := begun(func(r *record) {
		r.Word, r.Token, r.InitiatorToken, r.Known, r.Seeded, r.Role, r.Reported = 0, 2, 1, endpoint.KnownMPTCP, 1, endpoint.EndpointInitiated, 0
		r.Traffic[0].WindowScale = 4
	})
	tests := map[string]struct {
		known, want record
		changed     bool
	}{
		"a record that began in the middle is completed": {begun(func(*record) {}), completed, true},
		"so is one that goes by the initiator's token": {
			begun(func(r *record) { r.Token, r.InitiatorToken, r.Reported = 1, 1, 3 }), reported(completed), true,
		},
		"a subflow whose SYN was seen is left alone": {
			begun(func(r *record) { r.Known = endpoint.KnownSYN }), begun(func(r *record) { r.Known = endpoint.KnownSYN }), false,
		},
		"a subflow whose token is known is left alone": {
			begun(func(r *record) { r.Token = 2 }), begun(func(r *record) { r.Token = 2 }), false,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := test.known
			if changed := complete(&got, &imported); changed != test.changed || got != test.want {
				t.Errorf("it became (%t)\n%+v, want\n%+v", changed, got, test.want)
			}
		})
	}
}

// What a socket says of its peer's wish may be what a rule made of it.
func TestABackupOfOurOwnMakingIsNotTakenForThePeersWish(t *testing.T) {
	const on = endpoint.BackupOn
	imported := record{Token: 2, InitiatorToken: 1, Backup: 1 << endpoint.ToEndpoint}
	tests := map[string]struct {
		told [2]uint8
		want uint8
	}{
		"nobody was told":                 {[2]uint8{}, 1 << endpoint.ToEndpoint},
		"the peer was told":               {[2]uint8{endpoint.FromEndpoint: on}, 1 << endpoint.ToEndpoint},
		"the endpoint itself was told":    {[2]uint8{endpoint.ToEndpoint: on}, 0},
		"both ends of the flow were told": {[2]uint8{on, on}, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var known record
			known.BackupState.Told = test.told
			if !complete(&known, &imported) || known.Backup != test.want {
				t.Errorf("the record says %b, want %b", known.Backup, test.want)
			}
		})
	}
}

func TestAConnectionIsCompletedButNotReplaced(t *testing.T) {
	imported := connection{Token: 2, InitiatorToken: 1, SequenceKnown: 3, InitialDataSequence: [2]uint64{10, 20}, DataPosition: [2]uint64{1, 2}}
	known := connection{Token: 2, Subflows: 5, SequenceKnown: 1, InitialDataSequence: [2]uint64{99, 0}, Sent: [2]uint64{7, 8}}
	want := connection{
		Token: 2, InitiatorToken: 1, Subflows: 5, SequenceKnown: 3, Sent: [2]uint64{7, 8},
		InitialDataSequence: [2]uint64{99, 20}, DataPosition: [2]uint64{0, 2},
	}
	if changed := completeConnection(&known, &imported); !changed || !reflect.DeepEqual(known, want) {
		t.Errorf("it became %+v, want %+v", known, want)
	}
	if completeConnection(&known, &imported) {
		t.Error("a whole one was changed")
	}
	alias := connection{Token: 3}
	if completeConnection(&alias, &imported) {
		t.Error("an alias was changed")
	}
}

func FuzzParseTokens(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0})
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		if pairs := parseTokens(data); len(pairs) > len(data)/8 {
			t.Errorf("%d bytes hold %d pairs", len(data), len(pairs))
		}
	})
}
