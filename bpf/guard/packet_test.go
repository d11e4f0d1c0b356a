// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/guard"
	"braid.dev/braid/internal/lab/network"
)

type verdict int32

const (
	next       verdict = -1
	dropped    verdict = 2
	redirected verdict = 7
)

// skBuff is short for it.
type skBuff = bpf.SKBuff

// The rows of two endpoints of one tenant, one of another, and the tenants' rows.
const (
	one, two, three = 1, 2, 3
	team, rival     = 1, 2
	blue            = 4 // a slot in the middle
)

var (
	addressesOf = map[uint32][]netip.Addr{
		one:   {netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("fd00:244:1::2")},
		two:   {netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("fd00:244:1::3")},
		three: {netip.MustParseAddr("10.244.1.4")},
	}
	peers = map[bool]netip.Addr{true: netip.MustParseAddr("10.244.2.2"), false: netip.MustParseAddr("fd00:244:2::2")}
)

// node is a namespace with a NIC and the host's end of two endpoints' interfaces, and
// the programs, loaded but attached nowhere.
type node struct {
	*network.Namespace
	nic, queue, queueEnd uint32
	ends                 map[uint32]uint32 // by the endpoint's row
	meter, source, leave *ebpf.Program
	unparsable           *ebpf.Program
	maps                 *guard.MeterMaps
	routedBy             *ebpf.Map
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{Namespace: network.NamespaceForTest(t), ends: map[uint32]uint32{}}
	peer := network.NamespaceForTest(t)
	index := func(name string) uint32 {
		require.NoError(t, network.Connect(n.Namespace, name, peer, name, network.Options{MTU: 9000}))
		index, err := n.Index(name)
		require.NoError(t, err)
		return uint32(index)
	}
	n.nic, n.queue, n.queueEnd = index("blue"), index("queue"), index("end")
	n.ends[one], n.ends[two] = index("pod1"), index("pod2")
	n.load(t)
	require.NoError(t, n.maps.Nics.Put(n.nic, uint32(blue)))
	for row, addresses := range addressesOf {
		for _, address := range addresses {
			require.NoError(t, n.maps.Addresses.Put(guard.MeterAddress{Word: bpf.Words(address)}, row))
		}
		if end := n.ends[row]; end != 0 {
			require.NoError(t, n.maps.Interfaces.Put(end, row))
		}
	}
	return n
}

func (n *node) load(t testing.TB) {
	t.Helper()
	var meter guard.MeterObjects
	require.NoError(t, guard.LoadMeterObjects(&meter, nil))
	t.Cleanup(func() { meter.Close() })
	n.meter, n.maps = meter.Meter, &meter.MeterMaps
	shared := map[string]*ebpf.Map{
		"addresses": n.maps.Addresses, "interfaces": n.maps.Interfaces, "allowances": n.maps.Allowances, "usages": n.maps.Usages,
	}
	var source guard.OwnSourceObjects
	require.NoError(t, guard.LoadOwnSourceObjects(&source, &ebpf.CollectionOptions{MapReplacements: shared}))
	t.Cleanup(func() { source.Close() })
	n.routedBy = source.RoutedBy
	var leave guard.LeaveQueueObjects
	require.NoError(t, guard.LoadLeaveQueueObjects(&leave, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{"queue_ends": n.maps.QueueEnds}}))
	t.Cleanup(func() { leave.Close() })
	delete(shared, "allowances")
	var unparsable guard.UnparsableObjects
	require.NoError(t, guard.LoadUnparsableObjects(&unparsable, &ebpf.CollectionOptions{MapReplacements: shared}))
	t.Cleanup(func() { unparsable.Close() })
	n.source, n.leave, n.unparsable = source.OwnSource, leave.LeaveQueue, unparsable.Unparsable
}

func (n *node) run(t testing.TB, program *ebpf.Program, frame []byte, context skBuff) verdict {
	t.Helper()
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context}
	var result uint32
	require.NoError(t, n.Do(func() (err error) {
		result, err = program.Run(&options)
		return err
	}))
	if !slices.Equal(options.DataOut, frame) {
		t.Errorf("the packet was changed:\n%x\n%x", frame, options.DataOut)
	}
	return verdict(int32(result))
}

// leaves runs the meter on a packet that is about to leave by the NIC.
func (n *node) leaves(t testing.TB, frame []byte, from uint32) verdict {
	t.Helper()
	return n.run(t, n.meter, frame, skBuff{Ifindex: n.nic, IngressIfindex: from})
}

func (n *node) allow(t testing.TB, row uint32, allowance guard.MeterAllowance) {
	t.Helper()
	require.NoError(t, n.maps.Allowances.Put(row, allowance))
}

func (n *node) usage(t testing.TB, row uint32) (usage guard.MeterUsage) {
	t.Helper()
	require.NoError(t, n.maps.Usages.Lookup(row, &usage))
	return usage
}

// price is that of a byte at a rate in bits a second.
func price(rate float64) uint64 { return uint64(8e9 / rate * (1 << 20)) }

const (
	etherIPv4, etherIPv6 = 0x0800, 0x86dd
	etherARP             = 0x0806
	etherVLAN, etherQinQ = 0x8100, 0x88a8
	udp, tcp, esp        = 17, 6, 50
)

// datagram describes an IP packet in an Ethernet frame.
type datagram struct {
	from     netip.Addr
	protocol uint8
	size     int    // of what comes after the IP header
	fragment uint16 // IPv4's field of flags and offset
	options  int    // of IPv4, in bytes
	tags     []uint16
}

func (d datagram) frame() []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for i, tag := range d.tags {
		frame = binary.BigEndian.AppendUint16(frame, tag)
		frame = binary.BigEndian.AppendUint16(frame, uint16(100+i))
	}
	if d.from.Is4() {
		return append(binary.BigEndian.AppendUint16(frame, etherIPv4), d.ipv4()...)
	}
	return append(binary.BigEndian.AppendUint16(frame, etherIPv6), d.ipv6()...)
}

func (d datagram) ipv4() []byte {
	header := make([]byte, 20+d.options)
	header[0] = 4<<4 | byte(len(header)/4)
	binary.BigEndian.PutUint16(header[2:], uint16(len(header)+d.size))
	binary.BigEndian.PutUint16(header[6:], d.fragment)
	header[8], header[9] = 64, d.protocol
	copy(header[12:], d.from.AsSlice())
	copy(header[16:], peers[true].AsSlice())
	return append(header, make([]byte, d.size)...)
}

func (d datagram) ipv6() []byte {
	header := make([]byte, 40)
	header[0], header[6], header[7] = 6<<4, d.protocol, 64
	binary.BigEndian.PutUint16(header[4:], uint16(d.size))
	copy(header[8:], d.from.AsSlice())
	copy(header[24:], peers[false].AsSlice())
	return append(header, make([]byte, d.size)...)
}

// whole is a frame of so many bytes from an address.
func whole(from netip.Addr, bytes int) []byte {
	return datagram{from: from, protocol: udp, size: bytes - 14 - map[bool]int{true: 20, false: 40}[from.Is4()]}.frame()
}

func arp(from netip.Addr) []byte {
	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 2}, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2)
	return append(append(frame, from.AsSlice()...), make([]byte, 28)...)
}
