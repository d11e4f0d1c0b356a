// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/guest"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
)

// programs are both of them, which share their maps.
type programs struct {
	from, to *ebpf.Program
	maps     *guest.FromGuestMaps
	inner    *ebpf.MapSpec
}

func load(t testing.TB) *programs {
	t.Helper()
	spec, err := guest.LoadFromGuest()
	require.NoError(t, err)
	var from guest.FromGuestObjects
	require.NoError(t, spec.LoadAndAssign(&from, nil))
	t.Cleanup(func() { from.Close() })
	var to guest.ToGuestObjects
	require.NoError(t, guest.LoadToGuestObjects(&to, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		"guests": from.Guests, "guest_flows": from.GuestFlows, "guest_counts": from.GuestCounts,
	}}))
	t.Cleanup(func() { to.Close() })
	return &programs{from.FromGuest, to.ToGuest, &from.FromGuestMaps, spec.Maps["guest_flows"].InnerMap}
}

// admit makes the interface a guest's, and returns its flows.
func (p *programs) admit(t testing.TB, index int, want guest.ToGuestGuest) *ebpf.Map {
	t.Helper()
	flows, err := ebpf.NewMap(p.inner)
	require.NoError(t, err)
	t.Cleanup(func() { flows.Close() })
	require.NoError(t, p.maps.GuestFlows.Put(uint32(index), flows))
	require.NoError(t, p.maps.GuestCounts.Put(uint32(index), guest.FromGuestGuestCounts{}))
	require.NoError(t, p.maps.Guests.Put(uint32(index), want))
	return flows
}

func (p *programs) counts(t testing.TB, index int) (counts guest.FromGuestGuestCounts) {
	t.Helper()
	require.NoError(t, p.maps.GuestCounts.Lookup(uint32(index), &counts))
	return counts
}

const joins = 2

func forBoth(t *testing.T, test func(t *testing.T, version int)) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) { test(t, version) })
	}
}

type verdict int32

const (
	next    verdict = -1
	dropped verdict = 2
)

const (
	fin, syn, rst, ack = 1, 2, 4, 0x10
	announcedPort      = guest.FirstAnnouncedPort
)

// host is a namespace with the ends of two guests' interfaces, and the programs, loaded
// but attached nowhere.
type host struct {
	*network.Namespace
	*programs
	one, two int
}

func newHost(t testing.TB, want guest.ToGuestGuest) *host {
	t.Helper()
	h := &host{Namespace: network.NamespaceForTest(t), programs: load(t)}
	peer := network.NamespaceForTest(t)
	for name, index := range map[string]*int{"one": &h.one, "two": &h.two} {
		require.NoError(t, network.Connect(h.Namespace, name, peer, name, network.Options{MTU: 9000}))
		var err error
		*index, err = h.Index(name)
		require.NoError(t, err)
		h.admit(t, *index, want)
	}
	return h
}

// run runs a program on a frame at an interface, and returns what becomes of it.
func (h *host) run(t testing.TB, program *ebpf.Program, index int, frame []byte) (verdict, []byte) {
	t.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: bpf.SKBuff{Ifindex: uint32(index)}}
	var result uint32
	require.NoError(t, h.Do(func() (err error) {
		result, err = program.Run(&options)
		return err
	}))
	return verdict(int32(result)), options.DataOut
}

// sends expects that what a guest sends leaves its interface as another segment.
func (h *host) sends(t testing.TB, index int, sent, leaves packettest.Segment) {
	t.Helper()
	v, out := h.run(t, h.from, index, sent.Frame())
	require.Equal(t, next, v)
	require.Equal(t, leaves.Frame(), out)
}

// receives expects that what comes for a guest reaches it as another segment.
func (h *host) receives(t testing.TB, index int, comes, reaches packettest.Segment) {
	t.Helper()
	v, out := h.run(t, h.to, index, comes.Frame())
	require.Equal(t, next, v)
	require.Equal(t, reaches.Frame(), out)
}

// connection is one that a guest begins.
type connection struct {
	guest, peer       netip.AddrPort
	guestKey, peerKey uint64
}

var connections = map[int]connection{
	4: {netip.MustParseAddrPort("10.244.1.2:40000"), netip.MustParseAddrPort("10.244.2.2:80"), 0x0102030405060708, 0x1112131415161718},
	6: {netip.MustParseAddrPort("[fd00:244:1::2]:40000"), netip.MustParseAddrPort("[fd00:244:2::2]:80"), 0x0102030405060708, 0x1112131415161718},
}

func (c connection) out() packettest.Segment {
	return packettest.Segment{From: c.guest, To: c.peer, Sequence: 1001, Acknowledge: 5001, Flags: ack, Window: 500}
}

func (c connection) in() packettest.Segment {
	return packettest.Segment{From: c.peer, To: c.guest, Sequence: 5001, Acknowledge: 1001, Flags: ack, Window: 600}
}

// token is the peer's: what joins of the guest carry (RFC 8684, section 3.2).
func (c connection) token() []byte {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, c.peerKey))
	return sum[:4]
}

// keys is the option of the third ACK (RFC 8684, section 3.1), or of the first data.
func (c connection) keys(flags byte, more ...byte) []byte {
	option := binary.BigEndian.AppendUint64([]byte{30, byte(20 + len(more)), 0x01, flags}, c.guestKey)
	return append(binary.BigEndian.AppendUint64(option, c.peerKey), more...)
}

// announcement is what the peer would announce (RFC 8684, section 3.4.1).
func (c connection) announcement(id byte, port uint16) []byte {
	key := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, c.peerKey), c.guestKey)
	signed := hmac.New(sha256.New, key)
	message := binary.BigEndian.AppendUint16(append([]byte{id}, c.peer.Addr().AsSlice()...), port)
	signed.Write(message)
	option := slices.Concat([]byte{30, 0, 0x30}, message, signed.Sum(nil)[24:])
	option[1] = byte(len(option))
	return option
}

// echo is the guest's answer to it.
func (c connection) echo(id byte, port uint16) []byte {
	option := slices.Concat([]byte{30, 0, 0x31, id}, c.peer.Addr().AsSlice(), binary.BigEndian.AppendUint16(nil, port))
	option[1] = byte(len(option))
	return option
}

var (
	capable    = []byte{30, 4, 0x01, 0x01}
	timestamps = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}
	dataAck    = []byte{30, 8, 0x20, 0x01, 0, 0, 0, 9}
)

func joining(token []byte) []byte {
	return slices.Concat([]byte{30, 12, 0x10, 0}, token, []byte{9, 9, 9, 9})
}

// begin has a guest open the connection.
func (h *host) begin(t testing.TB, index int, c connection) {
	t.Helper()
	first := c.out()
	first.Sequence, first.Acknowledge, first.Flags, first.Options = 1000, 0, syn, capable
	h.sends(t, index, first, first)
	third := c.out()
	third.Options = slices.Concat(timestamps, c.keys(0x01))
	h.sends(t, index, third, third)
}

// join is the guest's SYN to a port of its peer.
func (c connection) join(from, to uint16) packettest.Segment {
	return packettest.Segment{
		From: netip.AddrPortFrom(c.guest.Addr(), from), To: netip.AddrPortFrom(c.peer.Addr(), to),
		Sequence: 7000, Flags: syn, Window: 700, Options: joining(c.token()),
	}
}

// to is a segment with another destination port, and from one with another source port.
func to(s packettest.Segment, port uint16) packettest.Segment {
	s.To = netip.AddrPortFrom(s.To.Addr(), port)
	return s
}

func from(s packettest.Segment, port uint16) packettest.Segment {
	s.From = netip.AddrPortFrom(s.From.Addr(), port)
	return s
}
