// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/trace"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

var (
	web     = netip.MustParseAddrPort("10.244.1.2:40000")
	db      = netip.MustParseAddrPort("10.244.2.7:80")
	webOfV6 = netip.MustParseAddrPort("[fd00:1::2]:40000")
	dbOfV6  = netip.MustParseAddrPort("[fd00:2::7]:80")
)

// decode takes a frame apart, as any receiver would, and checks that nothing of it is malformed.
func decode(t *testing.T, frame []byte) (*layers.TCP, gopacket.Packet) {
	t.Helper()
	packet := gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.Default)
	if failure := packet.ErrorLayer(); failure != nil {
		t.Fatal(failure.Error())
	}
	tcp, ok := packet.Layer(layers.LayerTypeTCP).(*layers.TCP)
	require.True(t, ok, "no TCP segment: %s", packet)
	return tcp, packet
}

// mptcpOption is the MPTCP option of a segment, after its kind and length, in hexadecimal digits.
func mptcpOption(tcp *layers.TCP) string {
	for _, option := range tcp.Options {
		if option.OptionType == 30 {
			return hex.EncodeToString(option.OptionData)
		}
	}
	return ""
}

func flagsOf(tcp *layers.TCP) (flags string) {
	for _, flag := range []struct {
		name string
		set  bool
	}{{"SYN ", tcp.SYN}, {"ACK ", tcp.ACK}, {"FIN ", tcp.FIN}, {"RST ", tcp.RST}, {"PSH ", tcp.PSH}, {"URG ", tcp.URG}} {
		if flag.set {
			flags += flag.name
		}
	}
	return flags
}

// What RFC 8684 says of each option: its subtype in the upper half of the first byte.
func TestEachTypeOfPacketIsMadeAsTheRFCsSay(t *testing.T) {
	for kind, want := range map[v1alpha1.PacketType]struct {
		flags, option string
		payload       int
	}{
		agentapi.PacketTCP:       {"SYN ", "", 0},
		v1alpha1.PacketMPCapable: {"SYN ", "0101", 0},
		v1alpha1.PacketMPJoin:    {"SYN ", "1002" + "1a2b3c4d" + "00000000", 0},
		v1alpha1.PacketPureACK:   {"ACK ", "", 0},
		v1alpha1.PacketData:      {"ACK ", "", 10},
		v1alpha1.PacketDSS:       {"ACK ", "2005" + "00000001" + "00000001" + "00000001" + "000a" + "0000", 10},
		v1alpha1.PacketAddAddr:   {"ACK ", "3002" + "0af40102" + "0000000000000000", 0},
		v1alpha1.PacketMPPrio:    {"ACK ", "51", 0},
		v1alpha1.PacketReset:     {"ACK RST ", "", 0},
		v1alpha1.PacketFIN:       {"ACK FIN ", "", 0},
	} {
		t.Run(string(kind), func(t *testing.T) {
			packet := trace.Packet{From: web, To: db, Type: kind, Token: 0x1a2b3c4d, Sequence: 7, Acknowledgement: 9, Bytes: 10}
			frame, err := packet.Frame()
			require.NoError(t, err)
			tcp, _ := decode(t, frame)
			require.Equal(t, want.flags, flagsOf(tcp))
			require.Equal(t, want.option, mptcpOption(tcp))
			require.Len(t, tcp.Payload, want.payload)
			require.Equal(t, uint32(7), tcp.Seq)
			if tcp.SYN {
				require.Zero(t, tcp.Ack, "a SYN acknowledges nothing")
			} else {
				require.Equal(t, uint32(9), tcp.Ack)
			}
		})
	}
}

func TestEveryTypeThatIsOfferedCanBeMade(t *testing.T) {
	for _, kind := range agentapi.TracePackets() {
		for _, ends := range [][2]netip.AddrPort{{web, db}, {webOfV6, dbOfV6}} {
			packet := trace.Packet{From: ends[0], To: ends[1], Type: kind}
			frame, err := packet.Frame()
			require.NoError(t, err, kind)
			tcp, decoded := decode(t, frame)
			require.Equal(t, ends[0].Port(), uint16(tcp.SrcPort))
			require.Equal(t, ends[1].Port(), uint16(tcp.DstPort))
			require.Equal(t, ends[1].Addr().String(), decoded.NetworkLayer().NetworkFlow().Dst().String())
		}
	}
}

// A program that finds a wrong checksum would let the packet pass untouched.
func TestChecksumsAreRight(t *testing.T) {
	for name, ends := range map[string][2]netip.AddrPort{"IPv4": {web, db}, "IPv6": {webOfV6, dbOfV6}} {
		t.Run(name, func(t *testing.T) {
			packet := trace.Packet{From: ends[0], To: ends[1], Type: v1alpha1.PacketDSS, Bytes: 99}
			frame, err := packet.Frame()
			require.NoError(t, err)
			tcp, decoded := decode(t, frame)
			made := tcp.Checksum
			require.NoError(t, tcp.SetNetworkLayerForChecksum(decoded.NetworkLayer()))
			computed, err := tcp.ComputeChecksum()
			require.NoError(t, err)
			require.Zero(t, computed, "over a segment with its checksum %#x the sum is zero", made)
		})
	}
}

func TestAResetAcknowledgesOnlyWhatItIsToldTo(t *testing.T) {
	packet := trace.Packet{From: web, To: db, Type: v1alpha1.PacketReset, Sequence: 1}
	frame, err := packet.Frame()
	require.NoError(t, err)
	tcp, _ := decode(t, frame)
	require.Equal(t, "RST ", flagsOf(tcp))
}
