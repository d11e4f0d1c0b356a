// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// options are those of a segment of a subflow, as Linux sends it: timestamps, and a DSS
// option with a data acknowledgement and a mapping.
var (
	noOperation = layers.TCPOption{OptionType: layers.TCPOptionKindNop}
	timestamps  = layers.TCPOption{OptionType: layers.TCPOptionKindTimestamps, OptionData: []byte{0, 0, 0, 9, 0, 0, 0, 8}}
	mapping     = layers.TCPOption{OptionType: layers.TCPOptionKindMultipathTCP, OptionData: append([]byte{2 << 4, 0x0f}, make([]byte, 22)...)}

	// TCPOptions are those of a plain connection, and MPTCPOptions those of a subflow.
	TCPOptions   = []layers.TCPOption{noOperation, noOperation, timestamps}
	MPTCPOptions = []layers.TCPOption{noOperation, noOperation, timestamps, mapping, noOperation, noOperation}
)

// SegmentBytes is the payload of a segment.
const SegmentBytes = 1000

// Segment is an Ethernet frame with a TCP segment over IPv4 of an established
// connection, with SegmentBytes of payload. The checksums are right.
func Segment(from, to netip.AddrPort, options []layers.TCPOption) []byte {
	ethernet := &layers.Ethernet{
		DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4,
	}
	ip := &layers.IPv4{
		Version: 4, Id: 1, Flags: layers.IPv4DontFragment, TTL: 64, Protocol: layers.IPProtocolTCP,
		SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice(),
	}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()),
		Seq: 1, Ack: 1, ACK: true, Window: 0xffff, Options: options,
	}
	frame := gopacket.NewSerializeBuffer()
	err := tcp.SetNetworkLayerForChecksum(ip)
	if err == nil {
		err = gopacket.SerializeLayers(frame, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
			ethernet, ip, tcp, gopacket.Payload(make([]byte, SegmentBytes)))
	}
	if err != nil {
		panic(fmt.Sprintf("making a segment: %v", err)) // cannot fail with IPv4 addresses
	}
	return frame.Bytes()
}
