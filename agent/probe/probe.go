// SPDX-License-Identifier: Apache-2.0

// Package probe makes an end of a subflow send an acknowledgement. What is told in
// acknowledgements (MP_PRIO) would else wait for packets that never come: a subflow
// that is no longer to be a backup rests because it still is one.
//
// The end is sent a keepalive in the other's name: a segment without payload, one
// below what it expects. It changes nothing, and is answered (RFC 9293, 3.8.4).
package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// End is one end of a subflow.
type End struct {
	netip.AddrPort
	// Next is the sequence number that it sends next.
	Next uint32
}

// Prober sends probes from a network namespace. It needs CAP_NET_RAW.
type Prober struct{ ipv4, ipv6 int }

// Open returns a Prober for the namespace of the calling thread.
func Open() (*Prober, error) {
	ipv4, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if err != nil {
		return nil, fmt.Errorf("opening a raw socket: %w", err)
	}
	ipv6, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_RAW)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return &Prober{ipv4: ipv4, ipv6: -1}, nil
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening a raw socket for IPv6: %w", err), unix.Close(ipv4))
	}
	return &Prober{ipv4: ipv4, ipv6: ipv6}, nil
}

// Close ends the Prober.
func (p *Prober) Close() error {
	err := unix.Close(p.ipv4)
	if p.ipv6 >= 0 {
		err = errors.Join(err, unix.Close(p.ipv6))
	}
	if err != nil {
		return fmt.Errorf("closing raw sockets: %w", err)
	}
	return nil
}

// Probe sends to an end, in the name of the other. It does not wait for the answer.
// The other must not be sending payload at the moment.
func (p *Prober) Probe(to, from End) error { return p.send(keepalive{from, to}) }

func (p *Prober) send(k keepalive) error {
	var err error
	if to := k.to.Addr(); to.Is4() {
		err = unix.Sendto(p.ipv4, k.ipv4(), 0, &unix.SockaddrInet4{Addr: to.As4()})
	} else {
		err = unix.Sendto(p.ipv6, k.ipv6(), 0, &unix.SockaddrInet6{Addr: to.As16()})
	}
	if err != nil {
		return fmt.Errorf("probing %s: %w", k.to.AddrPort, err)
	}
	return nil
}

// keepalive is a segment.
type keepalive struct{ from, to End }

const (
	headerBytes = 20 // of TCP, and of IPv4
	hops        = 64
	// smallWindow matters to nobody but firewalls: the segment is outside of the
	// receiver's window, so it is answered and not read.
	smallWindow = 1024
)

func (k keepalive) ipv4() []byte {
	from, to := k.from.Addr().As4(), k.to.Addr().As4()
	header := make([]byte, headerBytes, 2*headerBytes)
	header[0] = 4<<4 | headerBytes/4
	binary.BigEndian.PutUint16(header[2:], 2*headerBytes)
	header[6] = 0x40 // don't fragment
	header[8], header[9] = hops, unix.IPPROTO_TCP
	copy(header[12:], from[:])
	copy(header[16:], to[:]) // the kernel fills in the header's checksum
	return append(header, k.segment(append(from[:], to[:]...))...)
}

func (k keepalive) ipv6() []byte {
	from, to := k.from.Addr().As16(), k.to.Addr().As16()
	header := []byte{6 << 4, 0, 0, 0, 0, headerBytes, unix.IPPROTO_TCP, hops}
	header = append(append(header, from[:]...), to[:]...)
	return append(header, k.segment(append(from[:], to[:]...))...)
}

// segment is TCP's part, whose checksum is also of the addresses.
func (k keepalive) segment(addresses []byte) []byte {
	const acknowledgement = 0x10
	tcp := make([]byte, headerBytes)
	binary.BigEndian.PutUint16(tcp[0:], k.from.Port())
	binary.BigEndian.PutUint16(tcp[2:], k.to.Port())
	binary.BigEndian.PutUint32(tcp[4:], k.from.Next-1)
	binary.BigEndian.PutUint32(tcp[8:], k.to.Next)
	tcp[12], tcp[13] = headerBytes/4<<4, acknowledgement
	binary.BigEndian.PutUint16(tcp[14:], smallWindow)
	pseudo := append(addresses, 0, unix.IPPROTO_TCP, 0, headerBytes)
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	return tcp
}

// checksum is that of RFC 1071, of an even number of bytes.
func checksum(data []byte) uint16 {
	var sum uint32
	for i := 0; i < len(data); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(data[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
