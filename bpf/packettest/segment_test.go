// SPDX-License-Identifier: Apache-2.0

package packettest_test

import (
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
)

var ends = map[string][2]netip.AddrPort{
	"IPv4": {netip.MustParseAddrPort("10.1.0.1:40000"), netip.MustParseAddrPort("10.2.0.2:80")},
	"IPv6": {netip.MustParseAddrPort("[fd00::1]:40000"), netip.MustParseAddrPort("[fd00::2]:80")},
}

// Another library reads what is built, and computes the same checksums.
func TestSegmentsAreReadByOthersAsTheyWereMeant(t *testing.T) {
	for version, end := range ends {
		t.Run(version, func(t *testing.T) {
			frame := packettest.Segment{
				From: end[0], To: end[1], Sequence: 7, Acknowledge: 9, Flags: 0x12, Window: 1000,
				Options: []byte{3, 3, 7}, Payload: []byte("odd"), VLAN: 5, DSCP: 46, Trailer: make([]byte, 6),
			}.Frame()
			packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
			require.Nil(t, packet.ErrorLayer())
			require.EqualValues(t, 5, packet.Layer(layers.LayerTypeDot1Q).(*layers.Dot1Q).VLANIdentifier)
			tcp := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
			require.Equal(t, []any{uint32(7), uint32(9), true, true, uint16(1000), "odd"}, []any{tcp.Seq, tcp.Ack, tcp.SYN, tcp.ACK, tcp.Window, string(tcp.Payload)})
			require.Equal(t, end[0].Addr().AsSlice(), packet.NetworkLayer().NetworkFlow().Src().Raw())
			require.NoError(t, tcp.SetNetworkLayerForChecksum(packet.NetworkLayer()))
			failed, mismatches := packet.VerifyChecksums()
			require.NoError(t, failed)
			require.Empty(t, mismatches)
		})
	}
}

func TestTheSumOverARightChecksumIsAllOnes(t *testing.T) {
	frame := packettest.Segment{From: ends["IPv4"][0], To: ends["IPv4"][1], IPOptions: []byte{1, 1, 1, 0}}.Frame()
	require.EqualValues(t, 0xffff, packettest.Sum(frame[14:38]))
	require.Equal(t, packettest.Sum([]byte{1, 2, 3}), packettest.Sum([]byte{1, 2, 3, 0}), "an odd number of bytes")
}
