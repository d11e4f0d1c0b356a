// SPDX-License-Identifier: Apache-2.0

package middlebox

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
)

var flows = map[string]ends{
	"IPv4": {netip.MustParseAddrPort("10.1.0.1:40000"), netip.MustParseAddrPort("10.2.0.2:80")},
	"IPv6": {netip.MustParseAddrPort("[fd00::1]:40000"), netip.MustParseAddrPort("[fd00::2]:80")},
}

// frameOf is a frame with a header of virtio, as a node sends it.
func frameOf(s packettest.Segment) []byte { return append(make([]byte, virtioHeader), s.Frame()...) }

func TestASegmentIsWrittenAsItWasRead(t *testing.T) {
	for version, flow := range flows {
		for _, payload := range []int{0, 1, 1000} {
			frame := frameOf(packettest.Segment{
				From: flow.from, To: flow.to, Sequence: 7, Acknowledge: 9, Flags: psh | ack, Window: 1000,
				Options: []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}, Payload: make([]byte, payload),
			})
			s, ok := decode(0, append([]byte(nil), frame...))
			require.True(t, ok)
			require.Equal(t, flow, s.ends)
			require.Equal(t, frame, s.encode(), "%s, %d bytes", version, payload)
		}
	}
}

func TestAFrameLosesItsPaddingAlone(t *testing.T) {
	flow := flows["IPv4"]
	frame := frameOf(packettest.Segment{From: flow.from, To: flow.to, Flags: ack})
	s, ok := decode(0, append(append([]byte(nil), frame...), 0, 0, 0, 0, 0, 0))
	require.True(t, ok)
	require.Equal(t, frame, s.encode())
}

func TestASegmentBeyondTheMTUIsLeftToOffload(t *testing.T) {
	for version, flow := range flows {
		s, ok := decode(0, frameOf(packettest.Segment{From: flow.from, To: flow.to, Flags: ack, Payload: make([]byte, 5000)}))
		require.True(t, ok)
		frame := s.encode()
		headers := ethernetHeader + len(s.ip) + tcpHeader
		require.Equal(t, byte(1), frame[0], "it says that its checksum is to be finished")
		require.Equal(t, map[string]byte{"IPv4": 1, "IPv6": 4}[version], frame[1])
		require.Equal(t, []byte{byte(headers), 0, byte((mtu - headers + ethernetHeader) & 0xff), byte((mtu - headers + ethernetHeader) >> 8)}, frame[2:6])
	}
}

// No frame that a node may send makes a box panic, and what it does not know passes.
func FuzzBoxes(f *testing.F) {
	for _, flow := range flows {
		for _, flags := range []uint8{syn, syn | ack, ack, fin | ack, rst} {
			f.Add(frameOf(packettest.Segment{
				From: flow.from, To: flow.to, Flags: flags, Options: []byte{30, 4, 0, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2},
				Payload: make([]byte, 100),
			}))
		}
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, kind := range Kinds() {
			box := kind.New()
			for range 2 {
				passed := box.Pass(0, append([]byte(nil), frame...))
				if _, ok := decode(0, frame); !ok {
					require.Len(t, passed, 1)
					require.True(t, bytes.Equal(frame, passed[0].Data))
				}
			}
		}
	})
}
