// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// The verdicts of a TC program that ours may give.
type verdict int32

const (
	next     verdict = -1
	redirect verdict = 7
)

// The paths of the node under test, by their slots. The routes use blue alone.
const (
	blue = iota
	green
	red
	paths
)

var pathNames = [paths]string{"blue", "green", "red"}

// The values of the enums in maps.h.
const (
	initiator = 1
	responder = 2
	endedBoth = 3
	maxPaths  = 8

	thePeer = 7
	thePod  = 1
)

// skBuff is short for it.
type skBuff = bpf.SKBuff

// node is a network namespace with one NIC for each path, joined to a peer, and
// the programs, loaded but attached nowhere.
type node struct {
	*network.Namespace
	peer *network.Namespace
	nics [paths]uint32
	to   *ebpf.Program
	from *ebpf.Program
	into *ebpf.Program // a tunnel
	// marked are to_uplink by the tc_index of its packets.
	marked map[int32]packettest.Marked
	maps   *uplink.ToUplinkMaps
	// silent: the peer answers nobody else meanwhile, and a test that a busy machine holds up
	// between two packets sees what becomes of paths that fall silent.
	silent bool
}

// ends are the addresses of a pod of the node and of one behind the peer.
type ends struct{ pod, other netip.AddrPort }

var endsOf = map[int]ends{
	4: {netip.MustParseAddrPort("10.244.1.2:40000"), netip.MustParseAddrPort("10.244.2.2:80")},
	6: {netip.MustParseAddrPort("[fd00:244:1::2]:40000"), netip.MustParseAddrPort("[fd00:244:2::2]:80")},
}

var versions = []int{4, 6}

// out is an empty segment from the pod, in its own right complete.
func (e ends) out() segment { return segment{from: e.pod, to: e.other, sequence: 1000, flags: ack} }

// syn is the pod's SYN with this MPTCP option.
func (e ends) syn(option []byte) segment {
	return segment{from: e.pod, to: e.other, sequence: firstSYN, flags: syn, options: usual(option)}
}

// flip is the same pair as the other one's node sees it.
func (e ends) flip() ends { return ends{pod: e.other, other: e.pod} }

// port is the same pair of pods with another port of the first one.
func (e ends) port(port uint16) ends {
	e.pod = netip.AddrPortFrom(e.pod.Addr(), port)
	return e
}

func newNode(t testing.TB) *node {
	t.Helper()
	n := &node{Namespace: network.NamespaceForTest(t), peer: network.NamespaceForTest(t)}
	for _, setting := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		require.NoError(t, n.Sysctl(setting, "1"))
	}
	// The peer's addresses are reached on their own NICs alone.
	require.NoError(t, n.peer.Sysctl("net.ipv4.conf.all.arp_ignore", "1"))
	for path, name := range pathNames {
		require.NoError(t, network.Connect(n.Namespace, name, n.peer, name, network.Options{
			MTU:        9000,
			AddressesA: []string{nodeAddress(path, 1, 4) + "/24", nodeAddress(path, 1, 6) + "/64"},
			AddressesB: []string{nodeAddress(path, 2, 4) + "/24", nodeAddress(path, 2, 6) + "/64"},
		}))
		index, err := n.Index(name)
		require.NoError(t, err)
		n.nics[path] = uint32(index)
	}
	for version, destination := range map[int]string{4: "10.244.2.0/24", 6: "fd00:244:2::/64"} {
		require.NoError(t, n.AddRoute(network.Route{Destination: destination, Gateway: nodeAddress(blue, 2, version), Interface: pathNames[blue]}))
	}
	// A place in the world that no peer leads to.
	for version, destination := range map[int]string{4: "192.0.2.0/24", 6: "2001:db8::/64"} {
		require.NoError(t, n.AddRoute(network.Route{Destination: destination, Gateway: nodeAddress(blue, 99, version), Interface: pathNames[blue]}))
	}
	n.loadCommon(t)
	n.reset(t)
	return n
}

// nodeAddress is that of the node (1) or its peer (2) on a path.
func nodeAddress(path, node, version int) string {
	if version == 6 {
		return fmt.Sprintf("fd00:%d::%d", 20+path, node)
	}
	return fmt.Sprintf("10.%d.0.%d", 20+path, node)
}

// programs are what is loaded of a node.
type programs struct {
	to   uplink.ToUplinkObjects
	from uplink.FromUplinkObjects
	into uplink.ToTunnelObjects
}

// common are the programs as nearly all tests want them, one after the other.
var common *programs

// loadCommon loads them for the first test, and clears their maps for all others.
func (n *node) loadCommon(t testing.TB) {
	t.Helper()
	if common == nil {
		common = loadPrograms(t, 131072)
	}
	require.NoError(t, packettest.Clear(&common.to.ToUplinkMaps, &common.from.FromUplinkMaps, &common.into.ToTunnelMaps))
	n.have(t, common)
}

// load loads the programs for a table of so many flows.
func (n *node) load(t testing.TB, entries uint32, settings ...func(to *ebpf.CollectionSpec)) {
	t.Helper()
	p := loadPrograms(t, entries, settings...)
	t.Cleanup(func() { require.NoError(t, errors.Join(p.to.Close(), p.from.Close(), p.into.Close())) })
	n.have(t, p)
}

func (n *node) have(t testing.TB, p *programs) {
	t.Helper()
	n.marked = map[int32]packettest.Marked{}
	t.Cleanup(func() {
		for _, m := range n.marked {
			m.Close()
		}
	})
	n.to, n.from, n.into, n.maps = p.to.ToUplink, p.from.FromUplink, p.into.ToTunnel, &p.to.ToUplinkMaps
}

// specs are those of the programs on NICs.
func specs(t testing.TB, entries uint32, settings ...func(to *ebpf.CollectionSpec)) (to, from *ebpf.CollectionSpec) {
	t.Helper()
	to, err := uplink.LoadToUplink()
	require.NoError(t, err)
	from, err = uplink.LoadFromUplink()
	require.NoError(t, err)
	for _, spec := range []*ebpf.CollectionSpec{to, from} {
		spec.Maps[uplink.ToUplinkMapFlows].MaxEntries = 4096
		require.NoError(t, spec.Variables["flow_entries"].Set(entries))
		haveFewPeers(spec)
	}
	for _, set := range settings {
		set(to)
	}
	return to, from
}

func loadPrograms(t testing.TB, entries uint32, settings ...func(to *ebpf.CollectionSpec)) *programs {
	t.Helper()
	toSpec, fromSpec := specs(t, entries, settings...)
	p := &programs{}
	to := &p.to
	require.NoError(t, toSpec.LoadAndAssign(to, nil))
	require.NoError(t, fromSpec.LoadAndAssign(&p.from, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		uplink.FromUplinkMapAcknowledged:  to.Acknowledged,
		uplink.FromUplinkMapAnswered:      to.Answered,
		uplink.FromUplinkMapClockReadings: to.ClockReadings,
		uplink.FromUplinkMapConnections:   to.Connections,
		uplink.FromUplinkMapEndpoints:     to.Endpoints,
		uplink.FromUplinkMapFlows:         to.Flows,
		uplink.FromUplinkMapHandshakes:    to.Handshakes,
		uplink.FromUplinkMapHotFlows:      to.HotFlows,
		uplink.FromUplinkMapLasting:       to.Lasting,
		uplink.FromUplinkMapLocalFilter:   to.LocalFilter,
		uplink.FromUplinkMapNode:          to.Node,
		uplink.FromUplinkMapPeerAddresses: to.PeerAddresses,
		uplink.FromUplinkMapPathLoads:     to.PathLoads,
		uplink.FromUplinkMapEndpointLoads: to.EndpointLoads,
		uplink.FromUplinkMapOwners:        to.Owners,
		uplink.FromUplinkMapEndedFlows:    to.EndedFlows,
		uplink.FromUplinkMapLivingFlows:   to.LivingFlows,
		uplink.FromUplinkMapTunnels:       to.Tunnels,
		uplink.FromUplinkMapOuters:        to.Outers,
		uplink.FromUplinkMapOutside:       to.Outside,
		uplink.FromUplinkMapPodRanges:     to.PodRanges,
		uplink.FromUplinkMapPreferences:   to.Preferences,
		uplink.FromUplinkMapTraffic:       to.Traffic,
		uplink.FromUplinkMapWithdrawn:     to.Withdrawn,
		uplink.FromUplinkMapWrappings:     to.Wrappings,

		uplink.FromUplinkMapRecentHandshakes: to.RecentHandshakes,
	}}))
	intoSpec, err := uplink.LoadToTunnel()
	require.NoError(t, err)
	require.NoError(t, intoSpec.LoadAndAssign(&p.into, &ebpf.CollectionOptions{MapReplacements: map[string]*ebpf.Map{
		uplink.ToTunnelMapEndpoints:   to.Endpoints,
		uplink.ToTunnelMapLocalFilter: to.LocalFilter,
	}}))
	return p
}

// fewPeers are enough for tests, which clear what is known of them one after the other.
const fewPeers = 512

// haveFewPeers makes room for so many, as the agent does.
func haveFewPeers(spec *ebpf.CollectionSpec) {
	for name, entries := range map[string]uint32{
		uplink.ToUplinkMapPeers: fewPeers, uplink.ToUplinkMapHealth: fewPeers,
		uplink.ToUplinkMapAnswered: fewPeers * uplink.MaxPaths,
		uplink.ToUplinkMapOuters:   fewPeers + 1, uplink.ToUplinkMapWrappings: fewPeers + 1,
	} {
		if m := spec.Maps[name]; m != nil {
			m.MaxEntries = entries
		}
	}
}

// reset makes all paths usable, selects the pod, and forgets all flows.
func (n *node) reset(t testutil.TB) {
	t.Helper()
	clearMap[uplink.ToUplinkFlowKey](t, n.maps.Flows)
	clearMap[uplink.ToUplinkFlowKey](t, n.maps.Handshakes)
	clearMap[uplink.ToUplinkConnectionKey](t, n.maps.Connections)
	clearMap[uplink.ToUplinkLastingKey](t, n.maps.Lasting)
	clearMap[uplink.ToUplinkAddress](t, n.maps.Endpoints)
	clearMap[uplink.ToUplinkAddress](t, n.maps.Owners)
	clearMap[uplink.ToUplinkAddress](t, n.maps.EndedFlows)
	put(t, n.maps.LivingFlows, uint32(0), uint32(0))
	clearMap[uplink.ToUplinkAddress](t, n.maps.PeerAddresses)
	put(t, n.maps.LocalFilter, uint32(0), uplink.ToUplinkFilter{})
	put(t, n.maps.Tunnels, uint32(0), uplink.ToUplinkTunnels{})
	clearMap[uint32](t, n.maps.Wrappings)
	clearMap[uplink.ToUplinkRangeKey](t, n.maps.PodRanges)
	n.prefer(t, uplink.ToUplinkPreference{})
	n.setHealth(t, uplink.ToUplinkHealth{})
	n.setNode(t, 1<<blue|1<<green|1<<red)
	n.setPeer(t, 1<<blue|1<<green|1<<red)
	for path := range paths {
		for _, version := range versions {
			put(t, n.maps.PeerAddresses, address(netip.MustParseAddr(nodeAddress(path, 2, version))), uint32(thePeer))
		}
	}
	n.selectPod(t, weights(1, 1, 1))
	for path := range paths {
		n.setAnswered(t, path, 0)
	}
}

// setAnswered sets when the peer answered last on a path.
func (n *node) setAnswered(t testutil.TB, path int, tick uint32) {
	t.Helper()
	put(t, n.maps.Answered, uint32(thePeer*maxPaths+path), tick)
}

// answersOthers has the peer be heard on all paths, for longer than a test lasts.
func (n *node) answersOthers(t testutil.TB) {
	t.Helper()
	if n.silent {
		return
	}
	for path := range paths {
		n.setAnswered(t, path, tick(t)+1<<30)
	}
}

// tick is what the programs take for the time.
func tick(t testutil.TB) uint32 {
	t.Helper()
	var now unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &now))
	return uint32(now.Nano() >> 20)
}

func (n *node) setNode(t testutil.TB, up uint32) {
	t.Helper()
	value := uplink.ToUplinkNode{PathsUp: up}
	copy(value.Interface[:], n.nics[:])
	put(t, n.maps.Node, uint32(0), value)
}

func (n *node) setClock(t testutil.TB, clock uint32) {
	t.Helper()
	value := lookup[uplink.ToUplinkNode](t, n.maps.Node, uint32(0))
	value.Clock = clock
	put(t, n.maps.Node, uint32(0), *value)
}

func (n *node) setPeer(t testutil.TB, up uint8) {
	t.Helper()
	value := uplink.ToUplinkPeer{Ipv4Paths: up, Ipv6Paths: up}
	for path := range paths {
		value.Ipv4[path] = address(netip.MustParseAddr(nodeAddress(path, 2, 4))).Word[3]
		value.Ipv6[path] = address(netip.MustParseAddr(nodeAddress(path, 2, 6)))
	}
	put(t, n.maps.Peers, uint32(thePeer), value)
}

// prefer says which paths the pod's endpoint may and would like to use.
func (n *node) prefer(t testutil.TB, preference uplink.ToUplinkPreference) {
	t.Helper()
	put(t, n.maps.Preferences, uint32(thePod), preference)
}

func (n *node) setHealth(t testutil.TB, health uplink.ToUplinkHealth) {
	t.Helper()
	put(t, n.maps.Health, uint32(thePeer), health)
}

// selectPod makes an endpoint of the pod, with these weights of the paths.
func (n *node) selectPod(t testutil.TB, weights uint64) {
	t.Helper()
	for _, version := range versions {
		pod := endsOf[version].pod.Addr()
		put(t, n.maps.Endpoints, address(pod), uplink.ToUplinkEndpoint{Id: thePod, Weights: weights})
		n.noteLocal(t, pod)
	}
}

// noteLocal sets the address's bit in the filter, as the agent does.
func (n *node) noteLocal(t testutil.TB, local netip.Addr) {
	t.Helper()
	var filter uplink.ToUplinkFilter
	require.NoError(t, n.maps.LocalFilter.Lookup(uint32(0), &filter))
	bit := uplink.FilterBit(address(local).Word)
	filter.Bits[bit/64] |= 1 << (bit % 64)
	put(t, n.maps.LocalFilter, uint32(0), filter)
}

// isAnswered ends the handshake that the pod's SYN began.
func (n *node) isAnswered(t testutil.TB, e ends, option []byte) {
	t.Helper()
	n.ingress(t, blue, e.synAck(option).frame())
	n.egress(t, blue, e.third().frame())
}

// isCalled has the pod answer a connection that comes in by this path.
func (n *node) isCalled(t testutil.TB, e ends, path int) ends {
	t.Helper()
	n.ingress(t, path, e.syn(capable(1)).flip().frame())
	n.egress(t, blue, e.synAck(capableWithKey(key)).flip().frame())
	n.ingress(t, path, e.third().flip().frame())
	return e
}

// weights are packed with the first path in the lowest byte.
func weights(of ...uint8) (packed uint64) {
	for path, weight := range of {
		packed |= uint64(weight) << (path * 8)
	}
	return packed
}

// egress runs to_uplink on a frame that leaves by this path's NIC.
func (n *node) egress(t testutil.TB, path int, frame []byte) verdict {
	t.Helper()
	return n.run(t, n.to, frame, skBuff{Ifindex: n.nics[path]})
}

// ingress runs from_uplink on a frame that came in by this path's NIC.
func (n *node) ingress(t testutil.TB, path int, frame []byte) verdict {
	t.Helper()
	verdict := n.run(t, n.from, frame, skBuff{Ifindex: n.nics[path], IngressIfindex: n.nics[path]})
	if verdict != next {
		t.Errorf("from_uplink gave the verdict %d", verdict)
	}
	return verdict
}

// run runs a program, and checks what must hold for every packet: the verdict is
// one of the two, and neither the bytes nor what goes with them has changed.
func (n *node) run(t testutil.TB, program *ebpf.Program, frame []byte, context skBuff) verdict {
	t.Helper()
	n.answersOthers(t)
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context, ContextOut: &skBuff{}}
	var result uint32
	err := n.Do(func() (err error) {
		result, err = program.Run(&options)
		return err
	})
	if err != nil {
		t.Fatalf("running the program with %d bytes: %v", len(frame), err)
	}
	if !bytes.Equal(options.DataOut, frame) {
		t.Errorf("the packet was changed:\n%x\n%x", frame, options.DataOut)
	}
	after := options.ContextOut.(*skBuff)
	after.Len, context.Len = 0, 0
	if context.WireLen == 0 {
		after.WireLen = 0
	}
	if difference := cmp.Diff(context, *after); difference != "" {
		t.Errorf("the packet's context was changed:\n%s", difference)
	}
	if v := verdict(int32(result)); v == next || v == redirect {
		return v
	}
	t.Fatalf("the verdict is %d", int32(result))
	return 0
}

// flow is the node's memory of a segment's subflow, or nil: of one that lives, or of
// its handshake. The segment is one that leaves the node.
func (n *node) flow(t testutil.TB, out segment) *uplink.ToUplinkFlow {
	t.Helper()
	if flow := lookup[uplink.ToUplinkFlow](t, n.maps.Flows, flowKey(out)); flow != nil {
		n.hotEntry(t, out).addNotes(flow)
		return flow
	}
	if handshake := lookup[uplink.ToUplinkHandshake](t, n.maps.Handshakes, flowKey(out)); handshake != nil {
		return &handshake.Flow
	}
	return nil
}

// lookup is what a map has, or nil.
func lookup[V any](t testutil.TB, m *ebpf.Map, key any) *V {
	t.Helper()
	var value V
	err := m.Lookup(key, &value)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	require.NoError(t, err)
	return &value
}

// mustFlow is flow, of which there must be one.
func (n *node) mustFlow(t testutil.TB, out segment) *uplink.ToUplinkFlow {
	t.Helper()
	flow := n.flow(t, out)
	if flow == nil {
		t.Fatalf("no flow %v -> %v", out.from, out.to)
	}
	return flow
}

func (n *node) putFlow(t testutil.TB, out segment, flow uplink.ToUplinkFlow) {
	t.Helper()
	put(t, n.maps.Flows, flowKey(out), flow)
	n.coolDown(t, out)
}

// countFlows counts handshakes too.
func (n *node) countFlows(t testutil.TB) (count int) {
	t.Helper()
	return n.countLiving(t) + len(keys[uplink.ToUplinkFlowKey](t, n.maps.Handshakes))
}

func (n *node) countLiving(t testutil.TB) (count int) {
	t.Helper()
	return len(keys[uplink.ToUplinkFlowKey](t, n.maps.Flows))
}

// places are the numbers of subflows that a connection of the pod has on each
// path, or nil for a connection that is not known.
func (n *node) places(t testutil.TB, token uint32) []int {
	t.Helper()
	var connection uplink.ToUplinkConnection
	err := n.maps.Connections.Lookup(uplink.ToUplinkConnectionKey{Endpoint: thePod, Token: token}, &connection)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	require.NoError(t, err)
	places := make([]int, maxPaths)
	for path := range places {
		places[path] = int(connection.Subflows >> (path * 8) & 0xff)
	}
	return places[:paths]
}

func flowKey(out segment) uplink.ToUplinkFlowKey {
	return uplink.ToUplinkFlowKey{
		Local:      address(out.from.Addr()),
		Remote:     address(out.to.Addr()),
		LocalPort:  bigEndian(out.from.Port()),
		RemotePort: bigEndian(out.to.Port()),
	}
}

// bigEndian is a number as a program reads it from a packet.
func bigEndian(port uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, port))
}

func bigEndian32(number uint32) uint32 {
	return binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, number))
}

// address is IPv6, or IPv4 in its mapped form.
func address(of netip.Addr) (a uplink.ToUplinkAddress) {
	bytes := of.As16()
	for i := range a.Word {
		a.Word[i] = binary.NativeEndian.Uint32(bytes[i*4:])
	}
	return a
}

func put(t testutil.TB, m *ebpf.Map, key, value any) {
	t.Helper()
	if err := m.Put(key, value); err != nil {
		t.Fatalf("writing to %s: %v", m, err)
	}
}

func keys[K any](t testutil.TB, m *ebpf.Map) (keys []K) {
	t.Helper()
	var key K
	var value []byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		keys = append(keys, key)
	}
	require.NoError(t, entries.Err())
	return keys
}

func clearMap[K any](t testutil.TB, m *ebpf.Map) {
	t.Helper()
	for _, key := range keys[K](t, m) {
		require.NoError(t, m.Delete(key))
	}
}

func putConnection(t testutil.TB, n *node, token uint32) {
	t.Helper()
	put(t, n.maps.Connections, uplink.ToUplinkConnectionKey{Endpoint: thePod, Token: token}, uplink.ToUplinkConnection{})
}

func addrPort(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}

func sum(of []int) (total int) {
	for _, value := range of {
		total += value
	}
	return total
}

func asInts(of []uint8) (ints []int) {
	for _, value := range of {
		ints = append(ints, int(value))
	}
	return ints
}
