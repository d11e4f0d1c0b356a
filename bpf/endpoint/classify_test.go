// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/testutil"
)

func (h *host) connection(t testutil.TB, token uint32) *endpoint.FromEndpointMptcpConnection {
	t.Helper()
	var connection endpoint.FromEndpointMptcpConnection
	err := h.maps.MptcpConnections.Lookup(endpoint.FromEndpointMptcpConnectionKey{Endpoint: theEndpoint, Token: token}, &connection)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	require.NoError(t, err)
	return &connection
}

// nothing is a chain that concerns nobody.
func nothing() *endpoint.FromEndpointChain { return dropping(is(port(selectRemotePort, 9))) }

func TestTokensFollowFromTheKeys(t *testing.T) {
	h := newHost(t)
	rapid.Check(t, func(t *rapid.T) {
		local, remote := rapid.Uint64().Draw(t, "local"), rapid.Uint64().Draw(t, "remote")
		e := endsOf[rapid.SampledFrom(versions).Draw(t, "version")]
		h.forget(t)
		h.use(t, nothing())
		h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(capable)))
		h.receives(t, e.in().at(5000).flagged(syn|ack).carrying(usual(capableWithKey(remote))))
		if s := h.mustSubflow(t, e); s.Token != tokenOf(remote) || s.InitiatorToken != 0 {
			t.Fatalf("the tokens are %#x and %#x after the answer", s.Token, s.InitiatorToken)
		}
		h.sends(t, e.out().carrying(capableWithBothKeys(local, remote)))
		if s := h.mustSubflow(t, e); s.Token != tokenOf(remote) || s.InitiatorToken != tokenOf(local) {
			t.Fatalf("the tokens are %#x and %#x", s.Token, s.InitiatorToken)
		}
		c := h.connection(t, tokenOf(remote))
		if c == nil || c.InitialDataSequence != [2]uint64{dataSequenceOf(local), dataSequenceOf(remote)} || c.Subflows != 1 {
			t.Fatalf("the connection is %+v", c)
		}
	})
}

func TestTheRoleIsThatOfTheSYN(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, nothing())
		h.receives(t, e.in().at(5000).flagged(syn).carrying(usual(capable)))
		h.sends(t, e.out().at(1000).flagged(syn|ack).carrying(usual(capableWithKey(localKey))))
		h.receives(t, e.in().carrying(capableWithBothKeys(remoteKey, localKey)))
		s := h.mustSubflow(t, e)
		if s.Role != 2 || s.Token != tokenOf(localKey) || s.InitiatorToken != tokenOf(remoteKey) {
			t.Errorf("the record is %+v", s)
		}
		c := h.connection(t, tokenOf(localKey))
		if c == nil || c.InitialDataSequence != [2]uint64{dataSequenceOf(localKey), dataSequenceOf(remoteKey)} {
			t.Errorf("the connection is %+v", c)
		}
	})
}

// The connection is known by either end's token from the first packet that tells.
func TestRulesForAConnectionMatchAllItsSubflows(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for name, wanted := range map[string]uint32{"the responder's": tokenOf(remoteKey), "the initiator's": tokenOf(localKey)} {
			t.Run(name, func(t *testing.T) {
				h.forget(t)
				h.use(t, dropping(all(is(token(wanted)), is(types(typeData)))))
				second, other := e.port(41000), e.port(42000)
				h.begin(t, e)
				h.join(t, second, tokenOf(remoteKey))
				h.join(t, other, tokenOf(remoteKey)+1)
				h.expect(t, e, e.out().data(1), true, "the first subflow")
				h.expect(t, second, second.out().data(1), true, "a joined one")
				h.expect(t, second, second.in().data(1), true, "a joined one, received")
				h.expect(t, other, other.out().data(1), false, "one of another connection")
			})
		}
	})
}

func TestAJoinIsKnownFromItsSYNOn(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(is(token(77))))
		h.expect(t, e, e.out().at(1000).flagged(syn).carrying(usual(join(77, 0))), true, "the SYN")
		h.expect(t, e.port(1), e.port(1).in().at(1000).flagged(syn).carrying(usual(join(77, 0))), true, "a SYN of the peer's")
		h.expect(t, e.port(2), e.port(2).out().at(1000).flagged(syn).carrying(usual(join(78, 0))), false, "another")
	})
}

// A responder that joins names the initiator's token.
func TestAJoinToTheInitiatorIsOfTheSameConnection(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, nothing())
	h.begin(t, e)
	back := e.port(41000)
	h.receives(t, back.in().at(5000).flagged(syn).carrying(usual(join(tokenOf(localKey), 0))))
	if s := h.mustSubflow(t, back); s.Token != tokenOf(remoteKey) {
		t.Errorf("the token is %#x", s.Token)
	}
	if c := h.connection(t, tokenOf(remoteKey)); c.Subflows != 2 {
		t.Errorf("the connection has %d subflows", c.Subflows)
	}
}

func TestPlainTCPHasNoToken(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(not(token(77))))
	h.expect(t, e, e.out().at(1000).flagged(syn).carrying(usual(capable)), false, "while it may be MPTCP")
	h.expect(t, e, e.in().at(5000).flagged(syn|ack).carrying(usual(nil)), true, "the answer without MPTCP")
	h.expect(t, e, e.out(), true, "TCP")
}

func TestConnectionsOlderThanTheAgentBeginInTheMiddle(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(all(is(types(typeData)), is(port(selectRemotePort, 80)))))
		h.expect(t, e, e.out().carrying(timestamps(2, 2), mapping(9, 9, 1)).data(1), true, "known by its port")
		s := h.mustSubflow(t, e)
		if s.Token != 0 || s.Role != 0 || s.Traffic[0].WindowScale != 0 || s.Traffic[1].WindowScale != 0 {
			t.Errorf("the record is %+v", s)
		}
	})
}

func TestASeededRecordIsUsed(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	seeded := endpoint.FromEndpointSubflow{Token: 77, Path: 0xff, Known: 1<<2 | 1<<7, Seeded: 1}
	require.NoError(t, h.maps.Subflows.Update(keyOf(e), seeded, ebpf.UpdateNoExist))
	h.use(t, dropping(is(token(77))))
	h.expect(t, e, e.out().data(1), true, "seeded")
}

func TestWindowScalesAreThoseOfTheSYNs(t *testing.T) {
	h := newHost(t)
	h.use(t, nothing())
	for name, c := range map[string]struct {
		ours, theirs []byte
		expected     [2]uint8
	}{
		"both":           {scale(7), scale(2), [2]uint8{8, 3}},
		"only the first": {scale(7), nil, [2]uint8{1, 1}},
		"none":           {nil, nil, [2]uint8{1, 1}},
		"none asked for": {nil, scale(2), [2]uint8{1, 1}},
		"zero":           {scale(0), scale(0), [2]uint8{1, 1}},
		"too large":      {scale(20), scale(14), [2]uint8{15, 15}},
	} {
		t.Run(name, func(t *testing.T) {
			h.forget(t)
			e := endsOf[4]
			h.sends(t, e.out().at(1000).flagged(syn).carrying(c.ours))
			h.receives(t, e.in().at(5000).flagged(syn|ack).carrying(c.theirs))
			s := h.mustSubflow(t, e)
			if got := [2]uint8{s.Traffic[0].WindowScale, s.Traffic[1].WindowScale}; got != c.expected {
				t.Errorf("the scales are %v, expected %v", got, c.expected)
			}
		})
	}
}

func TestAnotherSYNBeginsAnotherSubflow(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, dropping(all(is(token(88)), is(types(typeData)))))
		h.join(t, e, 77)
		for range 20 {
			h.expect(t, e, e.out().data(1), false, "the first subflow")
		}
		h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(join(77, 0))))
		if s := h.mustSubflow(t, e); s.Traffic[1].Packets == 0 {
			t.Error("a repeated SYN began a new record")
		}
		h.sends(t, e.out().at(70000).flagged(syn).carrying(usual(join(88, 0))))
		h.expect(t, e, e.out().at(70001).data(1), true, "another subflow of the same ports")
	})
}

func TestTheMemoHoldsRulesByDirection(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, build(
		rule{when: is(direction(fromEndpoint))},
		rule{when: is(types(typeData))},
		rule{when: all(is(types(typeData)), is(port(selectRemotePort, 9)))},
		rule{},
		rule{directions: 1 << toEndpoint},
		rule{when: anyOf(is(types(typeData)), is(direction(toEndpoint)))},
	))
	h.sends(t, e.out())
	s := h.mustSubflow(t, e)
	if s.Sure != [2]uint64{0b001001, 0b111000} || s.Maybe != [2]uint64{0b100010, 0b000010} {
		t.Errorf("sure %06b, maybe %06b", s.Sure, s.Maybe)
	}
	if s.Word != word(1, 1, h.epoch) {
		t.Errorf("the memo is for %#x", s.Word)
	}
}

// A subflow that no rule concerns leaves no trace in its record but now and then.
func TestSubflowsThatConcernNobodyAreLeftAlone(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, nothing())
		h.begin(t, e)
		for range 200 {
			h.sends(t, e.out().data(1))
			h.receives(t, e.in())
		}
		if packets := h.mustSubflow(t, e).Traffic[0].Packets; packets > 150 {
			t.Errorf("the record was visited by %d packets", packets)
		}
		h.use(t, dropping(is(port(selectRemotePort, 80))))
		h.expect(t, e, e.out().data(1), true, "under another chain")
	})
}

// Which slot of the negative cache two subflows get must not matter.
func TestManySubflowsAreToldApart(t *testing.T) {
	h := newHost(t)
	h.use(t, dropping(is(within(selectLocalPort, 10000, 10999))))
	for round := range 12 {
		for number := uint16(9500); number < 11500; number += 10 {
			for _, version := range versions {
				e := endsOf[version].port(number)
				h.expect(t, e, e.out(), number >= 10000 && number < 11000, fmt.Sprint(round, e))
			}
		}
	}
}

func TestEndpointsCannotTouchEachOthersRecords(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, dropping(is(token(77))))
	h.join(t, e, 77)
	h.attach(t, endpoint.FromEndpointAttachment{Interface: h.nics[blue], Endpoint: 8, Chain: word(1, 2, 1)})
	if v := h.run(t, h.from, e.out().frame(), skBuff{Ifindex: h.nics[blue]}); v != next {
		t.Errorf("the other endpoint's packet of the same addresses got the verdict %d", v)
	}
	if s := h.mustSubflow(t, e); s.Token != 77 {
		t.Errorf("the record is %+v", s)
	}
}

// dump is all that a map holds, as bytes.
func dump(t testutil.TB, m *ebpf.Map) []byte {
	t.Helper()
	var all, key, value []byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		all = append(append(all, key...), value...)
	}
	require.NoError(t, entries.Err())
	return all
}

func TestKeysAreKeptNowhere(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	reader := h.events(t)
	h.use(t, build(rule{do: []action{{Kind: actionReportConnection}, {Kind: actionReportSubflow}, {Kind: actionRecord}}}))
	h.begin(t, e)
	h.sends(t, e.out().carrying(timestamps(2, 2), capableWithData(localKey, remoteKey, 9)).data(9))
	memory := dump(t, h.maps.Subflows)
	memory = append(memory, dump(t, h.maps.MptcpConnections)...)
	events := reader()
	if len(events) != 2 {
		t.Errorf("there are %d events", len(events))
	}
	for _, event := range events {
		memory = append(memory, event.raw...)
	}
	var context []endpoint.FromEndpointContext
	for direction := range uint32(2) {
		require.NoError(t, h.maps.RunContext.Lookup(direction, &context))
		for i := range context {
			encoded, err := binary.Append(nil, binary.NativeEndian, stripped(context[i]))
			require.NoError(t, err)
			memory = append(memory, encoded...)
		}
	}
	for _, key := range []uint64{localKey, remoteKey} {
		big, little := binary.BigEndian.AppendUint64(nil, key), binary.LittleEndian.AppendUint64(nil, key)
		for _, form := range [][]byte{big, little, big[:4], little[:4], big[4:], little[4:]} {
			if bytes.Contains(memory, form) {
				t.Errorf("a part of the key %#x is in memory as %x", key, form)
			}
		}
	}
	if !bytes.Contains(memory, binary.NativeEndian.AppendUint32(nil, tokenOf(remoteKey))) {
		t.Error("nor is the token in memory")
	}
}
