// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"bytes"
	"testing"
)

// dataOf is the n-th segment of data that an endpoint sends, all of them of a length.
func dataOf(e ends, n uint32, length int) segment {
	return e.out().at(1001+n*uint32(length)).carrying(timestamps(9, 9), mapping(1, 1, uint16(length))).data(length)
}

// What a rule asked for once is remembered, and asked for no more; the packets are
// counted all the same.
func TestRulesThatHaveNothingNewToAskAreCounted(t *testing.T) {
	h := newHost(t)
	lasting := []action{
		{Kind: actionRateLimit, Mechanism: 2, Rate: 1 << 30}, {Kind: actionSetBackup, Flag: 1}, {Kind: actionSuppressAddAddr},
		{Kind: actionReportConnection}, {Kind: actionReportSubflow}, {Kind: actionRecord}, {Kind: actionStack},
	}
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{when: is(types(typeData)), do: lasting}, rule{do: lasting[3:]}, rule{when: is(types(typeFIN)), do: lasting}))
		h.begin(t, e)
		before := h.counters(t)
		for n := range uint32(20) {
			h.sends(t, dataOf(e, n, 100))
		}
		after := h.counters(t)
		for i, expected := range []uint64{20, 20, 0} {
			hits, sent := after.Rule[i].Hits-before.Rule[i].Hits, after.Rule[i].Bytes-before.Rule[i].Bytes
			if hits != expected || sent != expected*100 {
				t.Errorf("rule %d has %d hits with %d bytes", i, hits, sent)
			}
		}
		if acted := after.Rule[0].Acted - before.Rule[0].Acted; acted != 1 {
			t.Errorf("a limit and a desired state were new in %d packets", acted)
		}
	})
}

func TestOppositeWishesTakeTurns(t *testing.T) {
	const off, on = 1, 2
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(
			rule{when: is(types(typeData)), do: []action{{Kind: actionSetBackup, Flag: 1}}},
			rule{when: is(types(typeFIN)), do: []action{{Kind: actionSetBackup}}}))
		h.begin(t, e)
		for turn := range uint32(3) {
			for n := range uint32(5) {
				h.sends(t, dataOf(e, turn*5+n, 10))
			}
			if wanted := h.mustSubflow(t, e).BackupState.Wanted; wanted != on {
				t.Errorf("after data in turn %d the desired state is %d", turn, wanted)
			}
			for range 5 {
				h.sends(t, e.out().at(1001+turn*50).flagged(ack|fin))
			}
			if wanted := h.mustSubflow(t, e).BackupState.Wanted; wanted != off {
				t.Errorf("after an end in turn %d the desired state is %d", turn, wanted)
			}
		}
	})
}

func TestAnAnnouncementIsHiddenHoweverManyPacketsPassedBefore(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{when: is(direction(fromEndpoint)), do: []action{{Kind: actionSuppressAddAddr}}}))
		h.begin(t, e)
		for n := range uint32(20) {
			h.sends(t, dataOf(e, n, 100))
			h.sends(t, e.out().at(2001).carrying(timestamps(9, 9), dataAck()))
			_, after := h.change(t, h.from, e.out().at(2001).carrying(timestamps(5, 4), addAddress(0)).frame(), skBuff{Ifindex: h.pod})
			if bytes.Contains(after, []byte{10, 0, 0, 9}) {
				t.Errorf("the packet\n%x", after)
			}
		}
	})
}

// A subflow is given to its pod's stack by what its packets are as well.
func TestTheStackIsToldOfRulesThatMatchedAPacket(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		rules := build(rule{do: noops(1)}, rule{when: is(types(typeData)), do: noops(1)}, rule{when: is(types(typeFIN)), do: noops(1)})
		h.use(t, rules)
		h.begin(t, e)
		if told := h.mustSubflow(t, e).Stack; told != 1<<0 {
			t.Errorf("before data the rules are %b", told)
		}
		h.sends(t, dataOf(e, 0, 100))
		if told := h.mustSubflow(t, e).Stack; told != 1<<0|1<<1 {
			t.Errorf("with data the rules are %b", told)
		}
		h.use(t, rules)
		h.sends(t, e.out().at(1101))
		if told := h.mustSubflow(t, e).Stack; told != 1<<0 {
			t.Errorf("by a new chain the rules are %b", told)
		}
	})
}

// A window that was granted is written again into packets that acknowledge nothing
// new, with what keeps the checksum right, and never raised.
func TestAWindowIsLoweredInEachPacket(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		limit := action{Kind: actionRateLimit, Mechanism: 2, Rate: 10_000_000}
		h.use(t, nothing())
		h.begin(t, e)
		h.use(t, build(rule{when: is(direction(toEndpoint)), do: []action{limit}}))
		h.receives(t, e.in().at(5001).carrying(timestamps(9, 9)).data(10))
		for n := range uint32(50) {
			s := dataOf(e, n, 100+int(n)).with(func(s *segment) { s.window = 0xffff - uint16(n)*1311 })
			_, after := h.change(t, h.from, s.frame(), skBuff{Ifindex: h.pod})
			granted := h.mustSubflow(t, e).Window[toEndpoint].Window
			shift := h.mustSubflow(t, e).Traffic[fromEndpoint].WindowScale - 1
			expected := s.with(func(s *segment) { s.window = min(s.window, uint16((granted+(1<<shift)-1)>>shift)) })
			if granted == 0 || expected.window == 0xffff || !bytes.Equal(after, expected.frame()) {
				t.Fatalf("packet %d is\n%x and not, with %d bytes granted,\n%x", n, after, granted, expected.frame())
			}
		}
	})
}
