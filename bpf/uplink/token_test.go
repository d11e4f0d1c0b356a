// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// tokenOf is the token that RFC 8684 makes of a key.
func tokenOf(key uint64) uint32 {
	hash := sha256.Sum256(binary.BigEndian.AppendUint64(nil, key))
	return binary.BigEndian.Uint32(hash[:])
}

// synAck is the answer to the pod's SYN.
func (e ends) synAck(option []byte) segment {
	return e.syn(option).flip().with(func(s *segment) { s.flags, s.sequence = syn|ack, answerNumber })
}

// third is the segment with which the pod takes the answer.
func (e ends) third() segment {
	return e.out().with(func(s *segment) { s.sequence, s.answer = firstSYN+1, answerNumber+1 })
}

func TestTheTokenIsTheHashOfTheKey(t *testing.T) {
	n := newNode(t)
	rapid.Check(t, func(t *rapid.T) {
		key := rapid.Uint64().Draw(t, "key")
		e := endsOf[rapid.SampledFrom(versions).Draw(t, "version")]
		n.reset(t)
		n.egress(t, blue, e.syn(capable(1)).frame())
		n.ingress(t, blue, e.synAck(capableWithKey(key)).frame())
		if flow := n.mustFlow(t, e.out()); flow.Token != tokenOf(key) {
			t.Fatalf("the token of key %#x is %#x instead of %#x", key, flow.Token, tokenOf(key))
		}
	})
}

func TestJoiningSubflowsFindTheirConnection(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for first := range paths {
			n.reset(t)
			n.begin(t, e, uint8(first))
			if places := n.places(t, tokenOf(key)); sum(places) != 1 || places[first] != 1 {
				t.Fatalf("the places of a connection that began on path %d are %v", first, places)
			}
			used := []int{first}
			for port := range uint16(2) {
				s := e.port(41000 + port).syn(join(tokenOf(key)))
				n.egress(t, blue, s.frame())
				used = append(used, int(n.mustFlow(t, s).Path))
			}
			if slices.Sort(used); !slices.Equal(used, []int{blue, green, red}) {
				t.Errorf("the subflows are on %v", used)
			}
		}
	})
}

// The same token at another pod, or at no pod of ours, is another connection.
func TestAConnectionBelongsToItsPod(t *testing.T) {
	n := newNode(t)
	n.begin(t, endsOf[4], red)
	if places := n.places(t, tokenOf(key+1)); places != nil {
		t.Errorf("another connection has the places %v", places)
	}
}

func TestAnswersThatTeachNoToken(t *testing.T) {
	n := newNode(t)
	version0 := capableWithKey(key)
	version0[2] = 0
	answers := map[string]func(*segment){
		"plain TCP":                      func(s *segment) { s.options = usual(nil) },
		"no options":                     func(s *segment) { s.options = nil },
		"MP_CAPABLE without a key":       func(s *segment) { s.options = capable(1) },
		"MP_CAPABLE of version 0":        func(s *segment) { s.options = version0 },
		"MP_CAPABLE with a key too long": func(s *segment) { s.options = append([]byte{30, 20, 1, 1}, make([]byte, 16)...) },
		"MP_JOIN":                        func(s *segment) { s.options = joinAnswer() },
		"no SYN":                         func(s *segment) { s.flags = ack },
		"a reset":                        func(s *segment) { s.flags, s.options = rst|ack, nil },
		"the answer to another port":     func(s *segment) { s.to = addrPort(s.to.Addr().String(), 1) },
	}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for name, change := range answers {
			n.reset(t)
			n.egress(t, blue, e.syn(capable(1)).frame())
			n.ingress(t, blue, e.synAck(capableWithKey(key)).with(change).frame())
			n.egress(t, blue, e.third().frame())
			if flow := n.flow(t, e.out()); flow != nil && flow.Token != 0 || n.places(t, tokenOf(key)) != nil {
				t.Errorf("%s: the flow is %+v, places %v", name, flow, n.places(t, tokenOf(key)))
			}
		}
	})
}

func TestTheFirstAnswerCounts(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.egress(t, blue, e.syn(capable(1)).frame())
		for _, key := range []uint64{key, key, key + 1} {
			n.ingress(t, blue, e.synAck(capableWithKey(key)).frame())
		}
		n.egress(t, blue, e.third().frame())
		if flow := n.mustFlow(t, e.out()); flow.Token != tokenOf(key) {
			t.Errorf("the token is %#x", flow.Token)
		}
		if places := n.places(t, tokenOf(key)); sum(places) != 1 {
			t.Errorf("the places are %v", places)
		}
	})
}

// The token of a joining subflow is in its SYN; its answer carries no key.
func TestTheAnswerToAJoinKeepsItsToken(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.egress(t, blue, e.syn(join(token)).frame())
		n.ingress(t, blue, e.synAck(capableWithKey(key)).frame())
		if flow := n.mustFlow(t, e.out()); flow.Token != token {
			t.Errorf("the token is %#x", flow.Token)
		}
	})
}
