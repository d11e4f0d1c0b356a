// SPDX-License-Identifier: Apache-2.0

package trace_test

import (
	"bytes"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/trace"
	"braid.dev/braid/api/v1alpha1"
)

// ethernetHeader is how long it is, before what links without one carry.
const ethernetHeader = 14

func synOf(t *testing.T, packet trace.Packet) []byte {
	t.Helper()
	packet.Type = v1alpha1.PacketMPCapable
	frame, err := packet.Frame()
	require.NoError(t, err)
	return frame
}

// captured is a pcap file of one packet of a kind of link.
func captured(t *testing.T, link layers.LinkType, packet []byte) []byte {
	t.Helper()
	var file bytes.Buffer
	writer := pcapgo.NewWriter(&file)
	require.NoError(t, writer.WriteFileHeader(65535, link))
	require.NoError(t, writer.WritePacket(gopacket.CaptureInfo{CaptureLength: len(packet), Length: len(packet)}, packet))
	return file.Bytes()
}

// cooked is the header of Linux's "any" interface before a packet: of a length, with the type
// of Ethernet at a place.
func cooked(length, at int, kind layers.EthernetType, packet []byte) []byte {
	header := make([]byte, length, length+len(packet))
	header[at], header[at+1] = byte(kind>>8), byte(kind)
	return append(header, packet...)
}

func TestCapturesOfEachLinkAreReadAsEthernet(t *testing.T) {
	four, six := synOf(t, trace.Packet{From: web, To: db}), synOf(t, trace.Packet{From: webOfV6, To: dbOfV6})
	fourIP, sixIP := four[ethernetHeader:], six[ethernetHeader:]
	const cookedV2 = layers.LinkType(276)
	for name, test := range map[string]struct {
		link   layers.LinkType
		packet []byte
		want   []byte
	}{
		"Ethernet":        {layers.LinkTypeEthernet, four, four},
		"raw IPv4":        {layers.LinkTypeRaw, fourIP, fourIP},
		"raw IPv6":        {layers.LinkTypeRaw, sixIP, sixIP},
		"IPv4":            {layers.LinkTypeIPv4, fourIP, fourIP},
		"IPv6":            {layers.LinkTypeIPv6, sixIP, sixIP},
		"any, version 1":  {layers.LinkTypeLinuxSLL, cooked(16, 14, layers.EthernetTypeIPv4, fourIP), fourIP},
		"any, version 2":  {cookedV2, cooked(20, 0, layers.EthernetTypeIPv6, sixIP), sixIP},
		"any, IPv6 of v1": {layers.LinkTypeLinuxSLL, cooked(16, 14, layers.EthernetTypeIPv6, sixIP), sixIP},
	} {
		t.Run(name, func(t *testing.T) {
			frames, err := trace.ReadCapture(bytes.NewReader(captured(t, test.link, test.packet)), 10)
			require.NoError(t, err)
			require.Len(t, frames, 1)
			require.Equal(t, 1, frames[0].Number)
			require.Empty(t, frames[0].Problem)
			got := frames[0].Data
			if len(test.want) != len(got) {
				got = got[ethernetHeader:]
			}
			require.Equal(t, test.want, got)
			tcp, _ := decode(t, frames[0].Data)
			require.True(t, tcp.SYN)
		})
	}
}

func TestACaptureOfTheNewerFormatIsRead(t *testing.T) {
	syn := synOf(t, trace.Packet{From: web, To: db})
	var file bytes.Buffer
	writer, err := pcapgo.NewNgWriter(&file, layers.LinkTypeEthernet)
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, writer.WritePacket(gopacket.CaptureInfo{CaptureLength: len(syn), Length: len(syn)}, syn))
	}
	require.NoError(t, writer.Flush())
	frames, err := trace.ReadCapture(bytes.NewReader(file.Bytes()), 2)
	require.NoError(t, err)
	require.Equal(t, []trace.Frame{{Number: 1, Data: syn}, {Number: 2, Data: syn}}, frames, "no more than the limit")
}

// tcpdump -s cuts packets short: what is left is not what the programs would see.
func TestAPacketThatWasNotCapturedWholeIsNotReplayed(t *testing.T) {
	syn := synOf(t, trace.Packet{From: web, To: db})
	var file bytes.Buffer
	writer := pcapgo.NewWriter(&file)
	require.NoError(t, writer.WriteFileHeader(60, layers.LinkTypeEthernet))
	require.NoError(t, writer.WritePacket(gopacket.CaptureInfo{CaptureLength: 60, Length: len(syn) + 1000}, syn[:60]))
	require.NoError(t, writer.WritePacket(gopacket.CaptureInfo{CaptureLength: len(syn), Length: len(syn)}, syn))
	frames, err := trace.ReadCapture(&file, 10)
	require.NoError(t, err)
	require.Len(t, frames, 2)
	require.Contains(t, frames[0].Problem, "only 60 of its")
	require.Nil(t, frames[0].Data)
	require.Equal(t, syn, frames[1].Data, "others of the file are replayed")
}

func TestCapturesOfOtherLinksAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		link   layers.LinkType
		packet []byte
		says   string
	}{
		"radio":          {layers.LinkTypeIEEE802_11, make([]byte, 60), "cannot be replayed"},
		"without packet": {layers.LinkTypeLinuxSLL, make([]byte, 16), "without content"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := trace.ReadCapture(bytes.NewReader(captured(t, test.link, test.packet)), 10)
			require.ErrorContains(t, err, test.says)
		})
	}
}
