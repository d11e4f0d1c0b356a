// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"testing"
	"time"
)

const (
	pause = 30 * time.Millisecond
	tick  = 20 * time.Millisecond // more than one of the kernel's clock
)

// about checks a round trip that lasted for a pause: no less, and not much more.
func about(t *testing.T, what string, microseconds uint32) {
	t.Helper()
	if got := time.Duration(microseconds) * time.Microsecond; got < pause || got > 50*pause {
		t.Errorf("%s is %v", what, got)
	}
}

func TestRoundTripsOfData(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{do: noops(1)}))
		h.sends(t, e.out())
		time.Sleep(tick)
		h.sends(t, e.out().at(1001).data(1000))
		h.receives(t, e.in().answering(1001))
		time.Sleep(pause)
		h.receives(t, e.in().answering(2001))
		s := h.mustSubflow(t, e)
		about(t, "the round trip to the peer", s.Traffic[fromEndpoint].SmoothedRtt)
		about(t, "the shortest one", s.Traffic[fromEndpoint].MinimumRtt)
		time.Sleep(tick)
		h.receives(t, e.in().at(5001).answering(2001).data(1000))
		time.Sleep(pause)
		h.sends(t, e.out().at(2001).answering(6001))
		about(t, "the round trip to the endpoint", h.mustSubflow(t, e).Traffic[toEndpoint].SmoothedRtt)
	})
}

// Nobody knows which of the two the answer is for.
func TestARepeatedSegmentTellsNoRoundTrip(t *testing.T) {
	h := newHost(t)
	e := endsOf[4]
	h.use(t, build(rule{do: noops(1)}))
	h.sends(t, e.out())
	time.Sleep(tick)
	h.sends(t, e.out().data(1000))
	h.sends(t, e.out().data(1000))
	time.Sleep(pause)
	h.receives(t, e.in().answering(2001))
	if rtt := h.mustSubflow(t, e).Traffic[fromEndpoint].SmoothedRtt; rtt != 0 {
		t.Errorf("the round trip is %d us", rtt)
	}
}

// An endpoint that only receives has its acknowledgements answered by the peer's
// timestamps.
func TestRoundTripsOfAcknowledgements(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for _, sends := range []bool{true, false} {
			h.forget(t)
			h.use(t, build(rule{do: []action{{Kind: actionRecord}}}))
			at := uint32(5001)
			receive := func(echoed uint32) {
				h.receives(t, e.in().at(at).carrying(timestamps(900, echoed), dataAck()).data(1000))
				at += 1000
			}
			h.sends(t, e.out().carrying(timestamps(100, 1), dataAck()))
			receive(100)
			time.Sleep(tick)
			h.sends(t, e.out().answering(at).carrying(timestamps(200, 900), dataAck()))
			if sends {
				receive(100)
				receive(100)
			}
			time.Sleep(pause)
			receive(200)
			rtt := h.mustSubflow(t, e).Traffic[fromEndpoint].SmoothedRtt
			if sends {
				about(t, "the round trip to the peer", rtt)
			} else if rtt != 0 {
				t.Errorf("a peer that was silent tells a round trip of %d us", rtt)
			}
		}
	})
}

func TestTheHandshakeTellsTheRoundTrip(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{do: noops(1)}))
		h.sends(t, e.out().at(1000).flagged(syn).carrying(usual(capable)))
		time.Sleep(pause)
		h.receives(t, e.in().at(5000).answering(1001).flagged(syn|ack).carrying(usual(nil)))
		about(t, "the round trip to the peer", h.mustSubflow(t, e).Traffic[fromEndpoint].SmoothedRtt)
		time.Sleep(pause)
		h.sends(t, e.out().answering(5001))
		about(t, "the round trip to the endpoint", h.mustSubflow(t, e).Traffic[toEndpoint].SmoothedRtt)
	})
}
