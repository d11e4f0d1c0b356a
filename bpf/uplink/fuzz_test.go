// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"encoding/binary"
	"testing"

	"braid.dev/braid/internal/testutil"
)

// seeds are packets of every kind that the other tests use.
func seeds() (frames [][]byte) {
	for _, version := range versions {
		e := endsOf[version]
		for _, option := range [][]byte{capable(1), join(token), nil} {
			frames = append(frames, e.syn(option).frame(), e.syn(option).flip().frame())
		}
		data := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), []byte("payload") })
		frames = append(frames, data.frame(), data.flip().frame(), e.synAck(capableWithKey(key)).frame(), e.synAck(joinAnswer()).frame())
		for _, flags := range []uint8{fin | ack, rst, rst | ack, syn | fin | rst, 0xff, 0} {
			end := e.out().with(func(s *segment) { s.flags = flags })
			frames = append(frames, end.frame(), end.flip().frame())
		}
		for _, c := range unlike {
			if c.version == 0 || c.version == version {
				frames = append(frames, e.syn(capable(1)).with(c.change).frame())
			}
		}
		for _, change := range unlikeSYN {
			frames = append(frames, e.syn(capable(1)).with(change).frame())
		}
	}
	return append(frames, tunnelSeeds()...)
}

// largestTestRun is the longest frame that every kernel takes for a test run.
const largestTestRun = 3000

// takesTestRun tells whether the kernel runs a program on the frame.
func takesTestRun(frame []byte) bool {
	if len(frame) < etherLength+1 || len(frame) > largestTestRun {
		return false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		return len(frame) >= shortest(4)
	case etherIPv6:
		return len(frame) >= shortest(6)
	}
	return true
}

// fuzz feeds one program with the frames; the node's run checks what must hold
// for each of them.
func fuzz(f *testing.F, run func(n *node, t testutil.TB, path int, frame []byte)) {
	n := newNode(f)
	n.setTunnels(f)
	for _, frame := range seeds() {
		for path := range paths {
			f.Add(byte(path), frame)
		}
	}
	// Flows that the frames may hit, on the node's own side and on the peer's.
	for _, version := range versions {
		n.begin(f, endsOf[version], green)
		n.ingress(f, red, endsOf[version].port(40500).syn(capable(1)).flip().frame())
	}
	f.Fuzz(func(t *testing.T, path byte, frame []byte) {
		if takesTestRun(frame) {
			run(n, t, int(path%paths), frame)
		}
	})
}

func FuzzToUplink(f *testing.F) {
	fuzz(f, func(n *node, t testutil.TB, path int, frame []byte) { n.egress(t, path, frame) })
}

func FuzzToUplinkThroughATunnel(f *testing.F) {
	fuzz(f, func(n *node, t testutil.TB, path int, frame []byte) { n.egressOf(t, path, ofThePod, frame) })
}

func FuzzFromUplink(f *testing.F) {
	fuzz(f, func(n *node, t testutil.TB, path int, frame []byte) { n.ingress(t, path, frame) })
}
