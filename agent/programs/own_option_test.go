// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/endpoint"
)

// What ask_pace writes for 25 times 10 kB a second.
const askedUnits, askedBytes = 25, 250000

var askedOption = []byte{253, 8, 0xb8, 0x1d, 128, 4, 0, askedUnits}

// from has a rule match what comes from an address alone.
func from(address [4]byte) *endpoint.FromEndpointSelector {
	selector := &endpoint.FromEndpointSelector{Kind: endpoint.SelectSourceAddress, IfTrue: matched, IfFalse: notMatched}
	bytes16 := append([]byte{10: 0xff, 11: 0xff}, address[:]...)
	for i := range selector.Address.Word {
		selector.Address.Word[i] = bits32(bytes16[4*i:])
		selector.Netmask.Word[i] = 0xffffffff
	}
	return selector
}

func bits32(b []byte) uint32 {
	return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
}

// The example of the docs: acknowledgements carry a number of one's own, a program on the
// sender's packets notes it where the rule's match admits who says so, and a schedule keeps it.
func TestASenderKeepsThePaceThatItsReceiverAsksForByAnOptionOfItsOwn(t *testing.T) {
	n, c := newChainNode(t)
	w := newWire(t, c)
	result := n.applyAll(t,
		n.put(t, "ask-pace", "examples/ask_pace.bpf.c", ""),
		sharing(n.put(t, "heed-pace", "examples/heed_pace.bpf.c", ""), "asked_paces", ""),
		sharing(n.schedule(t, "keep-pace", "examples/keep_pace.bpf.c"), "asked_paces", ""))
	require.NoError(t, n.Govern("policy/keep-pace", []uint64{cookieOf(t, w.endpoint)}))
	ask := rule{custom(result.Slots["policy/ask-pace"], askedUnits)}
	heed := rule{custom(result.Slots["policy/heed-pace"], 1)}
	arrives := newCapture(t, w.endpoint)
	sink := newSink(t, w.endpoint, w.peer, peerAddress)

	free := sink.rate(t)
	require.False(t, asks(arrives.segments(t)))
	c.setMatching(t, []*endpoint.FromEndpointSelector{nil, from([4]byte{192, 0, 2, 1})}, ask, heed)
	stranger := sink.rate(t)
	require.True(t, asks(arrives.segments(t)), "no acknowledgement has the option")
	c.setMatching(t, []*endpoint.FromEndpointSelector{nil, from([4]byte{10, 244, 2, 2})}, ask, heed)
	held := sink.rate(t)
	c.setMatching(t, []*endpoint.FromEndpointSelector{from([4]byte{10, 244, 2, 2})}, heed)
	sink.read(t, 3*time.Second)
	again := sink.rate(t)

	t.Logf("unasked %.1f MB/s, asked by who may not %.1f, asked %.3f, no longer asked %.1f", free/1e6, stranger/1e6, held/1e6, again/1e6)
	const slack, least = 1.3, 10 * askedBytes
	if held > slack*askedBytes {
		t.Errorf("the pod sends %.0f bytes a second, asked for %d at most", held, askedBytes)
	}
	if free < least || stranger < least || again < least {
		t.Errorf("where nobody may ask the pod sends %.0f, %.0f and %.0f bytes a second, wanted %d at least", free, stranger, again, least)
	}
}

func asks(packets [][]byte) bool {
	for _, packet := range packets {
		if checksumsHold(packet) && bytes.Contains(packet[40:20+int(packet[32]>>4)*4], askedOption) {
			return true
		}
	}
	return false
}
