// SPDX-License-Identifier: Apache-2.0

package testlab

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
)

// Flags of TCP segments.
const (
	FIN = 0x01
	SYN = 0x02
	RST = 0x04
	ACK = 0x10
)

// MPTCP options (RFC 8684).
var (
	Capable       = []byte{30, 4, 0x01, 0x81}
	LowPriority   = []byte{30, 3, 0x51, 1}
	RemoveAddress = []byte{30, 7, 0x40, 0, 1, 2, 3, 1}
)

// Joining is MP_JOIN of a SYN.
func Joining(token uint32) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{30, 12, 0x10, 7}, token), 1, 2, 3, 4)
}

// Announcing is ADD_ADDR with a code for which the connection's keys are needed.
func Announcing(address netip.Addr) []byte {
	option := append([]byte{30, byte(12 + len(address.AsSlice())), 0x30, 9}, address.AsSlice()...)
	return append(option, 1, 2, 3, 4, 5, 6, 7, 8)
}

// Forgery is a TCP segment as anybody who may send raw packets can make it.
type Forgery struct {
	From, To         netip.AddrPort
	Sequence, Answer uint32
	Flags            byte
	Options          []byte
}

// Packet is the segment with the header of IP.
func (f Forgery) Packet() []byte {
	options := slices.Clone(f.Options)
	for len(options)%4 != 0 {
		options = append(options, 1)
	}
	tcp := binary.BigEndian.AppendUint16(nil, f.From.Port())
	tcp = binary.BigEndian.AppendUint16(tcp, f.To.Port())
	tcp = binary.BigEndian.AppendUint32(tcp, f.Sequence)
	tcp = binary.BigEndian.AppendUint32(tcp, f.Answer)
	tcp = append(tcp, byte(5+len(options)/4)<<4, f.Flags, 0xff, 0xff, 0, 0, 0, 0)
	tcp = append(tcp, options...)
	binary.BigEndian.PutUint16(tcp[16:], checksumWith(f.From.Addr(), f.To.Addr(), unix.IPPROTO_TCP, tcp))
	if f.From.Addr().Is6() {
		return append(headerIPv6(f.From.Addr(), f.To.Addr(), unix.IPPROTO_TCP, len(tcp), 64), tcp...)
	}
	return append(headerIPv4(f.From.Addr(), f.To.Addr(), unix.IPPROTO_TCP, len(tcp)), tcp...)
}

// checksumWith is that of a message with its pseudo header.
func checksumWith(from, to netip.Addr, protocol byte, message []byte) uint16 {
	pseudo := binary.BigEndian.AppendUint32(slices.Concat(from.AsSlice(), to.AsSlice()), uint32(len(message))+uint32(protocol))
	return internetChecksum(append(pseudo, message...))
}

func headerIPv6(from, to netip.Addr, protocol byte, length int, hops byte) []byte {
	header := binary.BigEndian.AppendUint16([]byte{6 << 4, 0, 0, 0}, uint16(length))
	return slices.Concat(append(header, protocol, hops), from.AsSlice(), to.AsSlice())
}

func headerIPv4(from, to netip.Addr, protocol byte, length int) []byte {
	header := binary.BigEndian.AppendUint16([]byte{4<<4 | 5, 0}, uint16(20+length))
	header = append(header, 0, 0, 0, 0, 64, protocol, 0, 0)
	header = slices.Concat(header, from.AsSlice(), to.AsSlice())
	binary.BigEndian.PutUint16(header[10:], internetChecksum(header))
	return header
}

func internetChecksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(data); i += 2 {
		sum += uint32(data[i])<<8 | uint32(data[i+1])
	}
	if len(data)%2 == 1 {
		sum += uint32(data[len(data)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// Sockaddr is an address as system calls take it.
func Sockaddr(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
}

// Inside is whose network namespace a socket is opened in: a pod or a node.
type Inside interface{ Do(func() error) error }

// Forge sends segments from inside a pod or a node, with whatever addresses they have.
func Forge(t testing.TB, from Inside, segments ...Forgery) {
	t.Helper()
	sockets := map[bool]int{}
	for _, segment := range segments {
		is6 := segment.To.Addr().Is6()
		if _, open := sockets[is6]; !open {
			sockets[is6] = SocketIn(t, from, map[bool]int{false: unix.AF_INET, true: unix.AF_INET6}[is6], unix.SOCK_RAW, unix.IPPROTO_RAW)
			defer unix.Close(sockets[is6])
		}
		// Raw sockets of IPv6 take no port.
		to := Sockaddr(netip.AddrPortFrom(segment.To.Addr(), 0))
		if err := SendPatiently(sockets[is6], segment.Packet(), to); err != nil {
			t.Fatalf("sending as %v: %v", segment.From, err)
		}
	}
}

// SendPatiently waits while the queue is full.
func SendPatiently(socket int, packet []byte, to unix.Sockaddr) error {
	for {
		err := unix.Sendto(socket, packet, 0, to)
		if err != unix.ENOBUFS && err != unix.EAGAIN {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// SocketIn opens a socket inside a pod or a node.
func SocketIn(t testing.TB, in Inside, family, kind, protocol int) (socket int) {
	t.Helper()
	err := in.Do(func() (err error) {
		socket, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err != nil {
		t.Fatalf("opening a socket in %v: %v", in, err)
	}
	return socket
}

// Flood is what a pod sends by UDP, as fast as it can.
type Flood struct {
	From    netip.Addr // empty: what the kernel chooses
	To      netip.AddrPort
	Length  int
	Mbit    float64
	Prepare func(socket int) error
}

const floodPort = 9

// Run sends for so long.
func (f Flood) Run(t testing.TB, from Inside, duration time.Duration) {
	t.Helper()
	family := unix.AF_INET
	if f.To.Addr().Is6() {
		family = unix.AF_INET6
	}
	socket := SocketIn(t, from, family, unix.SOCK_DGRAM, 0)
	defer unix.Close(socket)
	if f.Prepare != nil {
		if err := f.Prepare(socket); err != nil {
			t.Fatal(err)
		}
	}
	if f.From.IsValid() {
		if err := unix.Bind(socket, Sockaddr(netip.AddrPortFrom(f.From, 0))); err != nil {
			t.Fatalf("binding to %v: %v", f.From, err)
		}
	}
	payload, to := make([]byte, cmp.Or(f.Length, 1400)), Sockaddr(f.To)
	pause := time.Duration(float64(len(payload)) * 8 / (f.Mbit * 1e6) * float64(time.Second))
	for begin, sent := time.Now(), 0; time.Since(begin) < duration; sent++ {
		_ = unix.Sendto(socket, payload, 0, to) // what does not fit is lost
		time.Sleep(time.Until(begin.Add(time.Duration(sent) * pause)))
	}
}

// UDPTo is where a flood goes to.
func UDPTo(address string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), floodPort)
}

// Encapsulate has a pod put packets of IPv4 into VXLAN and send them to a node's end of the overlay, so
// many times, as another node would.
func Encapsulate(t testing.TB, from Inside, to *network.Node, times int, packets ...[]byte) {
	t.Helper()
	socket := SocketIn(t, from, unix.AF_INET, unix.SOCK_DGRAM, 0)
	defer unix.Close(socket)
	end := Sockaddr(netip.AddrPortFrom(netip.MustParseAddr(to.Address(0, 4)), network.TunnelPort))
	ethernet := slices.Concat(to.TunnelMAC(), []byte{2, 0, 0, 0, 0, 9, 0x08, 0x00})
	for range times {
		for _, packet := range packets {
			datagram := slices.Concat([]byte{8, 0, 0, 0, 0, 0, network.TunnelID, 0}, ethernet, packet)
			if err := SendPatiently(socket, datagram, end); err != nil {
				t.Fatalf("sending to %v: %v", end, err)
			}
		}
	}
}

// SendTagged puts a packet into a frame with a VLAN tag, and sends that out of the pod.
func SendTagged(t testing.TB, pod *network.Pod, vlan uint16, packet []byte, count int) {
	t.Helper()
	index, err := pod.Index("eth0")
	if err != nil {
		t.Fatal(err)
	}
	handle, err := pod.Node.Handle()
	if err != nil {
		t.Fatal(err)
	}
	host, err := handle.LinkByName(pod.HostInterface)
	if err != nil {
		t.Fatal(err)
	}
	gateway := host.Attrs().HardwareAddr
	frame := slices.Concat(gateway, []byte{2, 0, 0, 0, 0, 9, 0x81, 0})
	frame = binary.BigEndian.AppendUint16(frame, vlan)
	frame = slices.Concat(frame, []byte{0x08, 0x00}, packet)
	socket := SocketIn(t, pod, unix.AF_PACKET, unix.SOCK_RAW, 0)
	defer unix.Close(socket)
	to := &unix.SockaddrLinklayer{Ifindex: index, Halen: 6}
	copy(to.Addr[:], gateway)
	for range count {
		if err := SendPatiently(socket, frame, to); err != nil {
			t.Fatalf("sending a tagged frame: %v", err)
		}
	}
}

// Received are the packets that a pod has received so far.
func Received(t testing.TB, pod *network.Pod) uint64 {
	t.Helper()
	counters, err := pod.Counters("eth0")
	if err != nil {
		t.Fatal(err)
	}
	return counters.RxPackets
}

// RunIn runs a command inside a pod.
func RunIn(t testing.TB, pod *network.Pod, command ...string) {
	t.Helper()
	if out, err := pod.Run(command[0], command[1:]...); err != nil {
		t.Fatalf("%v in %s: %v: %s", command, pod.PodName, err, out)
	}
}

// AddrPort is an address with a port.
func AddrPort(address string, port uint16) netip.AddrPort {
	return netip.MustParseAddrPort(net.JoinHostPort(address, fmt.Sprint(port)))
}

// ICMP is a message of ICMP with the header of IP. Its checksum is filled in.
func ICMP(from, to netip.Addr, message []byte) []byte {
	message = slices.Clone(message)
	binary.BigEndian.PutUint16(message[2:], internetChecksum(message))
	return append(headerIPv4(from, to, unix.IPPROTO_ICMP, len(message)), message...)
}

// ICMPv6 is a message of ICMPv6 as it is on a link, with the header of IP. Its checksum is
// filled in.
func ICMPv6(from, to netip.Addr, message []byte) []byte {
	message = slices.Clone(message)
	binary.BigEndian.PutUint16(message[2:], checksumWith(from, to, unix.IPPROTO_ICMPV6, message))
	return append(headerIPv6(from, to, unix.IPPROTO_ICMPV6, len(message), 255), message...)
}

// UDP is a datagram with the header of IP, and without a checksum.
func UDP(from, to netip.AddrPort, payload []byte) []byte {
	header := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from.Port()), to.Port())
	header = binary.BigEndian.AppendUint16(header, uint16(8+len(payload)))
	datagram := slices.Concat(header, []byte{0, 0}, payload)
	return append(headerIPv4(from.Addr(), to.Addr(), unix.IPPROTO_UDP, len(datagram)), datagram...)
}
