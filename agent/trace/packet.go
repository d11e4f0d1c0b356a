// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// Packet describes one that is made.
type Packet struct {
	From, To netip.AddrPort
	Type     v1alpha1.PacketType
	// Token of the responder, for MPJoin.
	Token agentapi.Token
	// Sequence and Acknowledgement are TCP's numbers.
	Sequence, Acknowledgement uint32
	// Bytes of payload, for Data and DSS.
	Bytes int
}

const (
	optionMPTCP = 30
	versionOne  = 1
	flagHMAC    = 1 // HMAC-SHA256, in MP_CAPABLE
	subCapable  = 0 << 4
	subJoin     = 1 << 4
	subDSS      = 2 << 4
	subAddAddr  = 3 << 4
	subPrio     = 5 << 4
	dssWithAck  = 1
	dssWithMap  = 4
	addressID   = 2
)

// mptcp is the MPTCP option of the packet, without its kind and length.
func (p *Packet) mptcp() []byte {
	switch p.Type {
	case v1alpha1.PacketMPCapable:
		return []byte{subCapable | versionOne, flagHMAC}
	case v1alpha1.PacketMPJoin:
		return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{subJoin, addressID}, uint32(p.Token)), 0)
	case v1alpha1.PacketDSS:
		option := []byte{subDSS, dssWithAck | dssWithMap, 0, 0, 0, 1} // a data ACK, then the mapping
		option = append(option, 0, 0, 0, 1, 0, 0, 0, 1)
		return append(binary.BigEndian.AppendUint16(option, uint16(p.Bytes)), 0, 0)
	case v1alpha1.PacketAddAddr:
		option := []byte{subAddAddr, addressID}
		option = append(option, p.From.Addr().AsSlice()...)
		return append(option, make([]byte, 8)...) // its HMAC
	case v1alpha1.PacketMPPrio:
		return []byte{subPrio | 1}
	}
	return nil
}

func (p *Packet) tcp() *layers.TCP {
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(p.From.Port()), DstPort: layers.TCPPort(p.To.Port()),
		Seq: p.Sequence, Ack: p.Acknowledgement, Window: 65535, ACK: true,
	}
	switch p.Type {
	case agentapi.PacketTCP, v1alpha1.PacketMPCapable, v1alpha1.PacketMPJoin:
		tcp.SYN, tcp.ACK, tcp.Ack = true, false, 0
		tcp.Options = []layers.TCPOption{{OptionType: layers.TCPOptionKindMSS, OptionLength: 4, OptionData: []byte{5, 180}}}
	case v1alpha1.PacketReset:
		tcp.RST, tcp.ACK = true, p.Acknowledgement != 0
	case v1alpha1.PacketFIN:
		tcp.FIN = true
	}
	if data := p.mptcp(); data != nil {
		tcp.Options = append(tcp.Options, layers.TCPOption{OptionType: optionMPTCP, OptionLength: uint8(len(data) + 2), OptionData: data})
	}
	return tcp
}

// Frame is the packet in an Ethernet frame, with right checksums.
func (p *Packet) Frame() ([]byte, error) {
	if p.From.Addr().Is4() != p.To.Addr().Is4() {
		return nil, fmt.Errorf("%s and %s are not both of IPv4 or of IPv6", p.From.Addr(), p.To.Addr())
	}
	if !slices.Contains(agentapi.TracePackets(), p.Type) {
		return nil, fmt.Errorf("there is no type %q of packets", p.Type)
	}
	tcp := p.tcp()
	ethernet := &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, EthernetType: layers.EthernetTypeIPv6}
	var network gopacket.SerializableLayer
	if p.From.Addr().Is4() {
		ethernet.EthernetType = layers.EthernetTypeIPv4
		ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: p.From.Addr().AsSlice(), DstIP: p.To.Addr().AsSlice()}
		network = ip
		_ = tcp.SetNetworkLayerForChecksum(ip) // it is one
	} else {
		ip := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: p.From.Addr().AsSlice(), DstIP: p.To.Addr().AsSlice()}
		network = ip
		_ = tcp.SetNetworkLayerForChecksum(ip)
	}
	payload := make([]byte, 0)
	if p.Type == v1alpha1.PacketData || p.Type == v1alpha1.PacketDSS {
		payload = make([]byte, p.Bytes)
	}
	buffer := gopacket.NewSerializeBuffer()
	options := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buffer, options, ethernet, network, tcp, gopacket.Payload(payload)); err != nil {
		return nil, fmt.Errorf("making the packet: %w", err)
	}
	return buffer.Bytes(), nil
}

// parsed is what is to be known of a frame.
type parsed struct {
	from, to netip.AddrPort
	tcp      *layers.TCP
	// ipAt and tcpAt are where the headers begin. Behind the segment a short frame has
	// padding.
	ipAt, tcpAt int
}

// parse is false for what is no TCP segment over IP.
func parse(frame []byte) (parsed, bool) {
	options := gopacket.DecodeOptions{Lazy: true, NoCopy: true}
	decoded := gopacket.NewPacket(frame, layers.LayerTypeEthernet, options)
	upper, upperAt := decoded, 0
	// The library does not look behind the fragment header of a packet in one piece.
	if fragment, ok := decoded.Layer(layers.LayerTypeIPv6Fragment).(*layers.IPv6Fragment); ok && fragment.FragmentOffset == 0 && !fragment.MoreFragments {
		upper = gopacket.NewPacket(fragment.LayerPayload(), fragment.NextHeader.LayerType(), options)
		upperAt = offsetOf(decoded, fragment) + len(fragment.LayerContents())
	}
	tcp, ok := upper.Layer(layers.LayerTypeTCP).(*layers.TCP)
	if !ok || decoded.NetworkLayer() == nil {
		return parsed{}, false
	}
	ends := decoded.NetworkLayer().NetworkFlow()
	from, _ := netip.AddrFromSlice(ends.Src().Raw())
	to, _ := netip.AddrFromSlice(ends.Dst().Raw())
	p := parsed{from: netip.AddrPortFrom(from, uint16(tcp.SrcPort)), to: netip.AddrPortFrom(to, uint16(tcp.DstPort)), tcp: tcp}
	p.ipAt, p.tcpAt = offsetOf(decoded, decoded.NetworkLayer()), upperAt+offsetOf(upper, tcp)
	return p, true
}

// offsetOf is where a layer begins in its packet.
func offsetOf(packet gopacket.Packet, wanted gopacket.Layer) (offset int) {
	for _, layer := range packet.Layers() {
		if layer == wanted {
			break
		}
		offset += len(layer.LayerContents())
	}
	return offset
}

var subtypes = map[byte]string{0: "MP_CAPABLE", 1: "MP_JOIN", 2: "DSS", 3: "ADD_ADDR", 4: "REMOVE_ADDR", 5: "MP_PRIO", 6: "MP_FAIL", 7: "MP_FASTCLOSE", 8: "MP_TCPRST"}

// String says what the packet is in a line.
func (p parsed) String() string {
	var what []string
	for name, set := range map[string]bool{"SYN": p.tcp.SYN, "ACK": p.tcp.ACK, "FIN": p.tcp.FIN, "RST": p.tcp.RST} {
		if set {
			what = append(what, name)
		}
	}
	slices.Sort(what)
	for _, option := range p.tcp.Options {
		if option.OptionType == optionMPTCP && len(option.OptionData) > 0 {
			what = append(what, subtypes[option.OptionData[0]>>4])
		}
	}
	if length := len(p.tcp.Payload); length > 0 {
		what = append(what, fmt.Sprintf("%d bytes", length))
	}
	return fmt.Sprintf("%s -> %s %s", p.from, p.to, strings.Join(what, " "))
}
