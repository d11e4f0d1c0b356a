// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// priority puts probes in front where a queue has bands, and precedence (CS6, as
	// of routing protocols) where a switch has: what fills a path must not hide that
	// the path works.
	priority   = 7
	precedence = 0xc0
	// direct is the hop limit of packets that no router has passed on. Those of
	// pods, also with a node's address, have been.
	direct = 255
	// mostRouters may be on a routed path.
	mostRouters = 8
	// receiveBuffer in bytes.
	receiveBuffer = 1 << 20
)

// place is an address of one of the node's NICs.
type place struct {
	nic     int
	address netip.Addr
	routed  bool
}

// socket is a UDP socket on one NIC with one of its addresses. It receives nothing
// but packets of one kind that came by that NIC, and past no router where the path has none.
type socket struct {
	place
	fd int
	// stamps: the NIC's driver tells when it takes a packet.
	stamps  bool
	ipv4    unix.SockaddrInet4 // to send to, used again and again
	ipv6    unix.SockaddrInet6
	packet  [512]byte
	control [512]byte
}

// openSocket opens a socket in the calling thread's network namespace; port 0 means
// any.
func openSocket(at place, port uint16, accepts uint8) (*socket, error) {
	family := unix.AF_INET
	if at.address.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a socket for probes: %w", err)
	}
	s := &socket{place: at, fd: fd}
	if err := s.setUp(port, accepts); err != nil {
		return nil, errors.Join(fmt.Errorf("setting up a socket for probes on %s of interface %d: %w", at.address, at.nic, err), s.close())
	}
	return s, nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

func (s *socket) setUp(port uint16, accepts uint8) error {
	var err error
	set := func(level, option, value int) {
		if err == nil {
			err = unix.SetsockoptInt(s.fd, level, option, value)
		}
	}
	set(unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, s.nic)
	if s.address.Is4() {
		set(unix.IPPROTO_IP, unix.IP_TTL, direct)
		set(unix.IPPROTO_IP, unix.IP_TOS, precedence)
		set(unix.IPPROTO_IP, unix.IP_FREEBIND, 1)
		set(unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE) // no fragments, whatever routers say
		set(unix.IPPROTO_IP, unix.IP_RECVERR, 1)                           // else a packet dropped here seems sent
		if !s.routed {
			set(unix.SOL_SOCKET, unix.SO_DONTROUTE, 1) // peers are on the NIC's own link
		}
	} else {
		set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
		set(unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, direct)
		set(unix.IPPROTO_IPV6, unix.IPV6_TCLASS, precedence)
		set(unix.IPPROTO_IPV6, unix.IPV6_FREEBIND, 1)
		set(unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)
		set(unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)
	}
	set(unix.SOL_SOCKET, unix.SO_PRIORITY, priority) // after the precedence, which sets it too
	set(unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW,
		unix.SOF_TIMESTAMPING_SOFTWARE|unix.SOF_TIMESTAMPING_RX_SOFTWARE|unix.SOF_TIMESTAMPING_TX_SOFTWARE)
	if err != nil {
		return err
	}
	// Without CAP_NET_ADMIN the buffer stays as large as the system allows.
	if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		set(unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	}
	if err := s.filter(accepts); err != nil {
		return fmt.Errorf("setting its filter: %w", err)
	}
	return unix.Bind(s.fd, s.to(netip.AddrPortFrom(s.address, port)))
}

// check is one of what a packet must be to be taken.
type check struct {
	code    uint16 // of the instruction that loads what is compared
	at      uint32
	compare uint16 // code of the instruction
	value   uint32
}

// checks are what makes a packet one of ours from this link. Where routers may be on the path,
// what few of them have passed on is taken too.
func (s *socket) checks(accepts uint8) []check {
	const (
		load       = unix.BPF_LD | unix.BPF_ABS
		equal      = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		atLeast    = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		udpHeader  = 8
		network    = 0xfff00000 // SKF_NET_OFF: from the beginning of the IP header
		hopLimitV4 = network + 8
		hopLimitV6 = network + 7
	)
	hopLimit, leastHops := uint32(hopLimitV4), uint32(direct)
	if s.address.Is6() {
		hopLimit = hopLimitV6
	}
	if s.routed {
		leastHops -= mostRouters
	}
	length, kind := uint16(equal), uint16(equal)
	if accepts == kindRequest { // and large ones: parse looks at them again
		length, kind = atLeast, unix.BPF_JMP|unix.BPF_JSET|unix.BPF_K
	}
	return []check{
		{load | unix.BPF_B, hopLimit, atLeast, leastHops},
		{unix.BPF_LD | unix.BPF_W | unix.BPF_LEN, 0, length, udpHeader + packetLength},
		{load | unix.BPF_W, udpHeader, equal, packetMagic},
		{load | unix.BPF_B, udpHeader + 4, equal, packetVersion},
		{load | unix.BPF_B, udpHeader + 5, kind, uint32(accepts)},
	}
}

// filter has the kernel drop everything but whole packets that pass the checks, before
// anything is queued.
func (s *socket) filter(accepts uint8) error {
	checks := s.checks(accepts)
	var program []unix.SockFilter
	for i, check := range checks {
		toEnd := uint8(2*(len(checks)-i-1) + 1)
		program = append(program,
			unix.SockFilter{Code: check.code, K: check.at},
			unix.SockFilter{Code: check.compare, K: check.value, Jf: toEnd})
	}
	program = append(program,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K})
	return unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

func (s *socket) to(address netip.AddrPort) unix.Sockaddr {
	if address.Addr().Is4() {
		s.ipv4.Addr, s.ipv4.Port = address.Addr().As4(), int(address.Port())
		return &s.ipv4
	}
	s.ipv6.Addr, s.ipv6.Port = address.Addr().As16(), int(address.Port())
	return &s.ipv6
}

// send sends a packet.
func (s *socket) send(p packet, to netip.AddrPort) error {
	wire := p.bytes()
	return s.sendBytes(wire[:], to)
}

// sendLarge sends a packet that is so many bytes long, with the IP header.
func (s *socket) sendLarge(p packet, size int, to netip.AddrPort) error {
	wire := p.bytes()
	return s.sendBytes(append(wire[:], make([]byte, max(0, size-headers(to.Addr())-packetLength))...), to)
}

// headers of IP and UDP, in bytes.
func headers(to netip.Addr) int {
	if to.Is6() {
		return 40 + 8
	}
	return 20 + 8
}

func (s *socket) sendBytes(wire []byte, to netip.AddrPort) error {
	err := unix.Sendto(s.fd, wire, 0, s.to(to))
	if belongsToEarlier(err) {
		err = unix.Sendto(s.fd, wire, 0, s.to(to))
	}
	return err
}

// belongsToEarlier tells errors that a router or host has reported of an earlier
// packet: the next call returns them, whatever it was to do.
func belongsToEarlier(err error) bool {
	return errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.ECONNREFUSED) ||
		errors.Is(err, unix.EACCES) || errors.Is(err, unix.EMSGSIZE) || errors.Is(err, unix.EPROTO) || errors.Is(err, unix.EINTR)
}

// received is a packet and when the kernel had it, by the wall clock.
type received struct {
	packet
	from netip.AddrPort
	at   time.Duration
}

// receive takes the next packet; false when there is none.
func (s *socket) receive() (received, bool) {
	for {
		n, control, _, from, err := unix.Recvmsg(s.fd, s.packet[:], s.control[:], 0)
		if belongsToEarlier(err) {
			continue
		}
		if err != nil {
			return received{}, false
		}
		if p, ok := parse(s.packet[:n]); ok {
			return received{packet: p, from: addrPort(from), at: timestamp(s.control[:control])}, true
		}
	}
}

func addrPort(from unix.Sockaddr) netip.AddrPort {
	switch from := from.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(from.Addr), uint16(from.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(from.Addr), uint16(from.Port))
	}
	return netip.AddrPort{}
}

// departed takes the next note of a packet that the NIC's driver has taken: its
// nonce, and when that was. The kernel hands back the packet as it was sent.
func (s *socket) departed() (nonce uint64, at time.Duration, ok bool) {
	for {
		n, control, _, _, err := unix.Recvmsg(s.fd, s.packet[:], s.control[:], unix.MSG_ERRQUEUE)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, 0, false
		}
		if !isTimestamp(s.control[:control]) {
			continue // what an ICMP message says can be forged
		}
		at := timestamp(s.control[:control])
		if p, ok := parse(s.packet[max(0, n-packetLength):n]); ok && at != 0 {
			s.stamps = true
			return p.nonce, at, true
		}
	}
}

// timestamp finds the kernel's software timestamp; 0 when there is none.
func timestamp(control []byte) time.Duration {
	data := find(control, unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW)
	if len(data) < 16 {
		return 0
	}
	seconds, nanoseconds := binary.NativeEndian.Uint64(data), binary.NativeEndian.Uint64(data[8:])
	return time.Duration(seconds)*time.Second + time.Duration(nanoseconds)
}

// isTimestamp tells what the error queue holds: a timestamp, or an error.
func isTimestamp(control []byte) bool {
	const origin = 4 // of struct sock_extended_err
	for _, kind := range [][2]int32{{unix.SOL_IP, unix.IP_RECVERR}, {unix.SOL_IPV6, unix.IPV6_RECVERR}} {
		if data := find(control, kind[0], kind[1]); len(data) > origin {
			return data[origin] == unix.SO_EE_ORIGIN_TIMESTAMPING
		}
	}
	return false
}

func find(control []byte, level, kind int32) []byte {
	for len(control) >= unix.SizeofCmsghdr {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return nil
		}
		if header.Level == level && header.Type == kind {
			return data
		}
		control = rest
	}
	return nil
}
