// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
)

var (
	parsedFrom = netip.MustParseAddrPort("[fd00:244:1::2]:40000")
	parsedTo   = netip.MustParseAddrPort("[fd00:244:2::2]:80")
)

func behind(chain packettest.Chain) (frame []byte, tcpAt int) {
	s := packettest.Segment{From: parsedFrom, To: parsedTo, Flags: 2, Extensions: chain.Extensions, Protocol: chain.Protocol, Payload: make([]byte, 30)}
	tcpAt = 14 + 40
	for _, extension := range chain.Extensions {
		tcpAt += 1 + len(extension.Body)
	}
	return s.Frame(), tcpAt
}

// What programs see behind extension headers, traces show.
func TestSegmentsBehindExtensionHeadersAreParsed(t *testing.T) {
	for name, chain := range packettest.Chains() {
		if chain.Visibility != packettest.TCPVisible {
			continue
		}
		t.Run(name, func(t *testing.T) {
			frame, tcpAt := behind(chain)
			seen, ok := parse(frame)
			require.True(t, ok)
			require.Equal(t, parsedFrom, seen.from)
			require.Equal(t, parsedTo, seen.to)
			require.Equal(t, 14, seen.ipAt)
			require.Equal(t, tcpAt, seen.tcpAt)
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, chain := range packettest.Chains() {
		frame, _ := behind(chain)
		f.Add(frame)
	}
	f.Add(packettest.Segment{From: netip.MustParseAddrPort("10.0.0.1:1"), To: netip.MustParseAddrPort("10.0.0.2:2"), IPOptions: make([]byte, 8), VLAN: 3}.Frame())
	f.Fuzz(func(t *testing.T, frame []byte) {
		seen, ok := parse(frame)
		if !ok {
			return
		}
		if seen.ipAt < 14 || seen.tcpAt < seen.ipAt+20 || seen.tcpAt+len(seen.tcp.Contents) > len(frame) {
			t.Errorf("IP at %d, TCP at %d of %d bytes", seen.ipAt, seen.tcpAt, len(frame))
		}
		_ = seen.String()
	})
}
