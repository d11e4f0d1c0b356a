// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"encoding/binary"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
)

// piece is one fragment of what follows the IP header.
type piece struct{ from, to int }

// disguise is a form in which a pod can send a SYN by a raw socket.
type disguise struct {
	version    int
	extensions []packettest.Extension
	ipOptions  []byte
	pieces     []piece // all in one where there are none
	// taken is whether a receiver's kernel answers, seen whether rules see TCP.
	taken, seen bool
}

// The SYN's header has 40 bytes with its options.
var (
	wholeSYN   = []piece(nil)
	tiny       = []piece{{0, 8}, {8, 40}}
	withHeader = []piece{{0, 24}, {24, 40}}
	// The second one would write over the flags of the first.
	overlapping = []piece{{0, 24}, {8, 40}}
)

func disguises() map[string]disguise {
	all := map[string]disguise{
		"plain, IPv4":                {version: 4, pieces: wholeSYN, taken: true, seen: true},
		"plain, IPv6":                {version: 6, pieces: wholeSYN, taken: true, seen: true},
		"IPv4 options":               {version: 4, ipOptions: []byte{1, 1, 1, 1}, taken: true, seen: true},
		"a tiny first fragment":      {version: 4, pieces: tiny, taken: true},
		"fragments":                  {version: 4, pieces: withHeader, taken: true},
		"fragments, the last first":  {version: 4, pieces: []piece{{24, 40}, {0, 24}}, taken: true},
		"overlapping fragments":      {version: 4, pieces: overlapping},
		"a tiny first one, IPv6":     {version: 6, pieces: tiny},
		"fragments, IPv6":            {version: 6, pieces: withHeader, taken: true},
		"overlapping ones, IPv6":     {version: 6, pieces: overlapping},
		"fragments of a destination": {version: 6, extensions: []packettest.Extension{packettest.Options(packettest.DestinationOptions, 1)}, pieces: []piece{{0, 32}, {32, 48}}, taken: true},
	}
	for name, chain := range packettest.Chains() {
		taken := slices.Contains([]string{"nine headers", "264 bytes"}, name) || chain.Visibility == packettest.TCPVisible
		if chain.Visibility != packettest.OtherProtocol && chain.Protocol == 0 {
			all["IPv6, "+name] = disguise{version: 6, extensions: chain.Extensions, taken: taken, seen: chain.Visibility == packettest.TCPVisible}
		}
	}
	return all
}

// packets are the SYN as it is sent, in one or more packets of IP.
func (d disguise) packets(from, to netip.AddrPort, number uint32) (packets [][]byte) {
	syn := packettest.Segment{
		From: from, To: to, Sequence: 1000, Flags: 2, Window: 65535, IPOptions: d.ipOptions,
		Options: []byte{2, 4, 5, 180, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
	}
	if d.pieces == nil || d.version == 6 {
		syn.Extensions = d.extensions
	}
	packet := syn.Frame()[14:]
	if d.pieces == nil {
		return [][]byte{packet}
	}
	header := map[int]int{4: 20, 6: 40}[d.version]
	for _, p := range d.pieces {
		packets = append(packets, fragment(packet, header, p, number))
	}
	return packets
}

func fragment(packet []byte, header int, p piece, number uint32) []byte {
	inner := packet[header:]
	last := p.to == len(inner)
	field := uint16(p.from)
	made := slices.Clone(packet[:header])
	if header == 20 {
		field /= 8
		if !last {
			field |= 0x2000
		}
		binary.BigEndian.PutUint16(made[4:], uint16(number))
		binary.BigEndian.PutUint16(made[6:], field)
		return append(made, inner[p.from:p.to]...)
	}
	if !last {
		field |= 1
	}
	made = append(made, made[6], 0)
	made[6] = packettest.FragmentHeader
	made = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint16(made, field), number)
	binary.BigEndian.PutUint16(made[4:], uint16(8+p.to-p.from))
	return append(made, inner[p.from:p.to]...)
}

// stranger is a pod that sends what it likes.
type stranger struct {
	pod  *network.Pod
	port uint16
}

// isAnswered sends a SYN in a disguise, and tells whether a SYN/ACK comes back.
func (s *stranger) isAnswered(t *testing.T, d disguise, to netip.AddrPort) (answered bool) {
	t.Helper()
	s.port++
	from := netip.AddrPortFrom(netip.MustParseAddr(s.pod.Address(d.version)), s.port)
	require.NoError(t, s.pod.Do(func() error {
		family := map[int]int{4: unix.AF_INET, 6: unix.AF_INET6}[d.version]
		hears, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_TCP)
		if err != nil {
			return err
		}
		defer unix.Close(hears)
		if err := unix.SetsockoptTimeval(hears, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}); err != nil {
			return err
		}
		if err := send(family, to, d.packets(from, to, uint32(s.port))); err != nil {
			return err
		}
		answered = hearsAnswer(hears, d.version, to, from)
		return nil
	}))
	return answered
}

func send(family int, to netip.AddrPort, packets [][]byte) error {
	socket, err := unix.Socket(family, unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(socket)
	var address unix.Sockaddr = &unix.SockaddrInet6{Addr: to.Addr().As16()}
	if family == unix.AF_INET {
		address = &unix.SockaddrInet4{Addr: to.Addr().As4()}
	}
	for _, packet := range packets {
		if err := unix.Sendto(socket, packet, 0, address); err != nil {
			return err
		}
	}
	return nil
}

func hearsAnswer(socket, version int, from, to netip.AddrPort) bool {
	buffer := make([]byte, 2000)
	for deadline := time.Now().Add(250 * time.Millisecond); time.Now().Before(deadline); {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err != nil {
			continue
		}
		tcp := buffer[:n]
		if version == 4 {
			tcp = tcp[20:]
		}
		if binary.BigEndian.Uint16(tcp) == from.Port() && binary.BigEndian.Uint16(tcp[2:]) == to.Port() && tcp[13] == 0x12 {
			return true
		}
	}
	return false
}

func listenOn(t *testing.T, pod *network.Pod, version int) netip.AddrPort {
	t.Helper()
	var listener net.Listener
	require.NoError(t, pod.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(pod.Address(version), "0"))
		return err
	}))
	t.Cleanup(func() { listener.Close() })
	return netip.MustParseAddrPort(listener.Addr().String())
}

// A rule that drops SYNs is avoided by what it does not see and the receiver takes all
// the same, unless a guardrail drops that. What the kernel at the other end takes is
// found out here, not known.
func TestNoRuleIsAvoidedWhereUnparsablePacketsAreDropped(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 1})
	pod, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	servers := map[int]netip.AddrPort{4: listenOn(t, server, 4), 6: listenOn(t, server, 6)}
	s := &stranger{pod: pod, port: 20000}
	opened := chains.Open(chains.Options{PinPath: filepath.Join(l.options.PinPath, "endpoints"), Log: logr.Discard()})
	t.Cleanup(func() { require.NoError(t, l.remove(l.Nodes[0], opened)) })
	for _, c := range []struct {
		name      string
		rule      bool
		guard     *v1alpha1.PlanGuard
		expectSYN func(disguise) bool
	}{
		{"nothing", false, nil, func(d disguise) bool { return d.taken }},
		{"a rule", true, nil, func(d disguise) bool { return d.taken && !d.seen }},
		{"a guardrail", false, &v1alpha1.PlanGuard{DropUnparsable: true}, func(d disguise) bool { return d.taken && d.seen }},
		{"a rule and a guardrail", true, &v1alpha1.PlanGuard{DropUnparsable: true}, func(disguise) bool { return false }},
	} {
		l.dropSYNs(t, opened, c.rule)
		l.state.Endpoints[0].Guard = c.guard
		l.apply(t)
		for name, d := range disguises() {
			if answered := s.isAnswered(t, d, servers[d.version]); answered != c.expectSYN(d) {
				t.Errorf("with %s, %s: answered: %t", c.name, name, answered)
			}
		}
	}
	if n := l.metric(t, "braid_guard_unparsable_packets_total", "pod", "pod-1-1"); n < 20 {
		t.Errorf("the metric says %g", n)
	}
}

// dropSYNs has a rule drop what the first pod sends that it can see, or none.
func (l *lab) dropSYNs(t *testing.T, part node.Part, drops bool) {
	t.Helper()
	rule := v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{
		Name: "r", Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionDrop}},
	}}
	state := l.state
	state.Endpoints = slices.Clone(state.Endpoints)
	state.Endpoints[0].Guard = nil
	if drops {
		state.Chains = []v1alpha1.PlanChain{{Name: "chain", Rules: []v1alpha1.PlanRule{rule}}}
		state.Endpoints[0].Chain = "chain"
	}
	require.NoError(t, l.Nodes[0].Do(func() error { return state.Apply(t.Context(), part, l.builder) }))
}

// What another node sends to the pod is dropped as well; UDP in fragments passes.
func TestUnparsablePacketsToAPodAreDropped(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, PodsPerNode: 1})
	pod, other := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	s := &stranger{pod: other, port: 20000}
	for _, version := range []int{4, 6} {
		to := listenOn(t, pod, version)
		d := disguise{version: version, pieces: withHeader}
		l.state.Endpoints[0].Guard = nil
		l.apply(t)
		if !s.isAnswered(t, d, to) {
			t.Errorf("IPv%d: fragments are not taken: the test shows nothing", version)
		}
		l.state.Endpoints[0].Guard = &v1alpha1.PlanGuard{DropUnparsable: true}
		l.apply(t)
		if s.isAnswered(t, d, to) {
			t.Errorf("IPv%d: fragments arrived", version)
		}
		count, address := heard(t, pod, version)
		sayLong(t, other, address, 5)
		sayLong(t, pod, address, 5)
		if n := count(); n != 10 {
			t.Errorf("IPv%d: %d of 10 datagrams in fragments arrived", version, n)
		}
	}
}

// sayLong sends datagrams that need several fragments.
func sayLong(t *testing.T, pod *network.Pod, to string, count int) {
	t.Helper()
	require.NoError(t, pod.Do(func() error {
		socket, err := net.Dial("udp", to)
		if err != nil {
			return err
		}
		defer socket.Close()
		for i := range count {
			if _, err := socket.Write(append([]byte(strconv.Itoa(i)), make([]byte, 8000)...)); err != nil {
				return err
			}
		}
		return nil
	}))
}
