// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// The neighbour has what node3 has: a NIC on each path, and raw sockets.
func (s *scene) neighbour() *network.Node { return s.Network.Nodes[2] }

// rawSender sends packets from the neighbour, whatever their addresses.
func (s *scene) rawSender(t *testing.T) func(to netip.Addr, packet []byte) {
	t.Helper()
	socket := testlab.SocketIn(t, s.neighbour(), unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_RAW)
	t.Cleanup(func() { _ = unix.Close(socket) })
	return func(to netip.Addr, packet []byte) {
		if err := testlab.SendPatiently(socket, packet, testlab.Sockaddr(netip.AddrPortFrom(to, 0))); err != nil {
			t.Fatal(err)
		}
	}
}

// forgeProbes sends requests and replies from node2 to node1, and the other way round.
func forgeProbes(t *testing.T, s *scene) {
	send := s.rawSender(t)
	for s.going() {
		for path := range s.Paths {
			one, other := testlab.AddrPort(s.Network.Nodes[0].Address(path, 4), probePort), testlab.AddrPort(s.Network.Nodes[1].Address(path, 4), probePort)
			for _, kind := range []byte{1, 2} {
				probe := slices.Concat([]byte("BRDP"), []byte{1, kind, 0xff, 0xff}, binary.BigEndian.AppendUint64(nil, rand.Uint64()), make([]byte, 8))
				send(one.Addr(), testlab.UDP(other, one, probe))
				send(other.Addr(), testlab.UDP(one, other, probe))
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// replayProbes sends what node2 sent to node3 to node1, from node2.
func replayProbes(t *testing.T, s *scene) {
	const everything = 0x300 // ETH_P_ALL in network byte order
	socket := testlab.SocketIn(t, s.neighbour(), unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, everything)
	defer unix.Close(socket)
	send := s.rawSender(t)
	buffer, seen := make([]byte, 2048), 0
	one := netip.MustParseAddr(s.Network.Nodes[0].Address(0, 4))
	for s.going() {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err != nil {
			time.Sleep(time.Millisecond)
			continue
		}
		packet := buffer[:n]
		if n < 28 || packet[0] != 4<<4|5 || packet[9] != unix.IPPROTO_UDP || string(packet[28:min(n, 32)]) != "BRDP" {
			continue
		}
		seen++
		from := netip.AddrFrom4([4]byte(packet[12:16]))
		ports := [2]uint16{binary.BigEndian.Uint16(packet[20:]), binary.BigEndian.Uint16(packet[22:])}
		for range 20 {
			send(one, testlab.UDP(netip.AddrPortFrom(from, ports[0]), netip.AddrPortFrom(one, ports[1]), packet[28:]))
		}
	}
	if seen == 0 {
		t.Error("no probe was seen, so none was sent again")
	}
}

// victimSegments have the addresses of the victim's subflows, in both directions.
func (s *scene) victimSegments(t *testing.T, flags byte, options ...byte) (segments []testlab.Forgery) {
	t.Helper()
	for _, subflow := range s.victimSubflows(t) {
		segments = append(segments,
			testlab.Forgery{From: subflow.Local, To: subflow.Remote, Sequence: rand.Uint32(), Answer: rand.Uint32(), Flags: flags, Options: options},
			testlab.Forgery{From: subflow.Remote, To: subflow.Local, Sequence: rand.Uint32(), Answer: rand.Uint32(), Flags: flags, Options: options})
	}
	return segments
}

// forgeTagged sends them to all NICs of a path.
func forgeTagged(t *testing.T, s *scene) {
	index, err := s.neighbour().Index("green")
	if err != nil {
		t.Fatal(err)
	}
	socket := testlab.SocketIn(t, s.neighbour(), unix.AF_PACKET, unix.SOCK_RAW, 0)
	defer unix.Close(socket)
	everybody := slices.Repeat([]byte{0xff}, 6)
	to := &unix.SockaddrLinklayer{Ifindex: index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	for vlan := uint16(0); s.going(); vlan = (vlan + 1) % 4096 {
		for _, segment := range append(s.victimSegments(t, testlab.SYN, testlab.Capable...), s.victimSegments(t, testlab.ACK)...) {
			frame := slices.Concat(everybody, []byte{2, 0, 0, 0, 0, 9, 0x81, 0}, binary.BigEndian.AppendUint16(nil, vlan), []byte{8, 0}, segment.Packet())
			if err := testlab.SendPatiently(socket, frame, to); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func forgeSegments(t *testing.T, s *scene) {
	for s.going() {
		segments := slices.Concat(
			s.victimSegments(t, testlab.RST), s.victimSegments(t, testlab.RST|testlab.ACK), s.victimSegments(t, testlab.FIN|testlab.ACK),
			s.victimSegments(t, testlab.SYN, testlab.Capable...), s.victimSegments(t, testlab.ACK, testlab.LowPriority...),
		)
		testlab.Forge(t, s.neighbour(), segments...)
		// One in 13,000 is near enough to what is due to be taken for an end of a flow
		// (docs/isolation.md): there are few.
		time.Sleep(100 * time.Millisecond)
	}
}

// poisonNeighbours says on a path's network that the victims' nodes are at an address where
// nobody is. It does not try the cluster network's own path: there everything else of the
// nodes ends too, whether Braid is there or not.
func poisonNeighbours(t *testing.T, s *scene) {
	const path = 1
	index, err := s.neighbour().Index(s.Paths[path])
	if err != nil {
		t.Fatal(err)
	}
	socket := testlab.SocketIn(t, s.neighbour(), unix.AF_PACKET, unix.SOCK_RAW, 0)
	defer unix.Close(socket)
	to := &unix.SockaddrLinklayer{Ifindex: index, Halen: 6, Addr: [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	half := time.Now().Add(attacking / 2)
	for s.going() {
		if s.takes == 0 && time.Now().After(half) {
			s.takes = s.cutAnyhow(t, path)
		}
		for _, node := range s.Network.Nodes[:2] {
			for _, frame := range [][]byte{arpReply(node.Address(path, 4)), neighbourAdvertisement(node.Address(path, 6))} {
				if err := testlab.SendPatiently(socket, frame, to); err != nil {
					t.Fatal(err)
				}
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	took, err := testutil.Until(noticed+staying, func() error { return s.flowsStay(t) })
	if err != nil {
		s.escaped("%v", err)
	}
	t.Logf("the victim's flows are where they were %v after the last answer, and stay there", took-staying)
}

// staying is how long flows must be where they were.
const staying = time.Second

// flowsStay is an error where they are on other paths than before, now or that much later.
func (s *scene) flowsStay(t *testing.T) error {
	t.Helper()
	if err := s.flowsMoved(t); err != nil {
		return err
	}
	time.Sleep(staying)
	return s.flowsMoved(t)
}

// cutAnyhow is the share of the goodput that goes with a path: none where what knows
// nothing of Braid still gets from one node to the other there.
func (s *scene) cutAnyhow(t *testing.T, path int) float64 {
	t.Helper()
	const unused, patience = 9, 200_000 // a port, microseconds
	socket := testlab.SocketIn(t, s.Network.Nodes[0], unix.AF_INET, unix.SOCK_STREAM, 0)
	defer unix.Close(socket)
	if err := errors.Join(
		unix.BindToDevice(socket, s.Paths[path]),
		unix.SetsockoptTimeval(socket, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: patience}),
	); err != nil {
		t.Fatal(err)
	}
	err := unix.Connect(socket, testlab.Sockaddr(testlab.AddrPort(s.Network.Nodes[1].Address(path, 4), unused)))
	t.Logf("plain TCP from one node to the other on that path: %v", err)
	if errors.Is(err, unix.ECONNREFUSED) {
		return 0
	}
	return untilNoticed / float64(len(s.Paths))
}

// untilNoticed is more than the path's part: at first its segments are lost.
const untilNoticed = 1.1

// noticed is how long the kernel may take to ask again for a neighbour that does not answer.
const noticed = 20 * time.Second

// neighbourAdvertisement says to all nodes that nobody has the address, as arpReply does.
func neighbourAdvertisement(address string) []byte {
	claimed := netip.MustParseAddr(address)
	message := slices.Concat([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, claimed.AsSlice(), []byte{2, 1}, nobody)
	packet := testlab.ICMPv6(claimed, netip.MustParseAddr("ff02::1"), message)
	return slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, nobody, []byte{0x86, 0xdd}, packet)
}
