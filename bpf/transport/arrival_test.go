// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/packettest"
)

// loopback is the NIC that packets of test runs come by.
const loopback = uint32(1)

// next is TCX_NEXT: the next program of the hook decides.
const next = ^uint32(0)

var (
	receiver = netip.MustParseAddrPort("10.244.1.2:5001")
	stranger = netip.MustParseAddrPort("10.244.1.3:5001")
	sender   = netip.MustParseAddrPort("10.244.2.2:40000")
)

func loadArrivals(t testing.TB, capacity uint64) *TransportObjects {
	t.Helper()
	objects := &TransportObjects{}
	require.NoError(t, LoadTransportObjects(objects, nil))
	t.Cleanup(func() { require.NoError(t, objects.Close()) })
	require.NoError(t, objects.CreditNics.Put(loopback, uint32(3)))
	require.NoError(t, objects.CreditCapacities.Put(uint32(3), capacity))
	for _, address := range []string{"10.244.1.2", "fd00::1:2"} {
		require.NoError(t, objects.CreditReceivers.Put(TransportAddress{Word: bpf.Words(netip.MustParseAddr(address))}, uint32(1)))
	}
	return objects
}

func keyOf(local, remote netip.AddrPort) (key TransportCreditFlowKey) {
	key.Local.Word, key.Remote.Word = bpf.Words(local.Addr()), bpf.Words(remote.Addr())
	key.LocalPort, key.RemotePort = bpf.Port(local.Port()), bpf.Port(remote.Port())
	return key
}

// foreign adds up what came for nobody's credit in the epochs that are remembered.
func foreign(t *testing.T, objects *TransportObjects) (all uint64) {
	t.Helper()
	var load TransportCreditLoad
	require.NoError(t, objects.CreditLoads.Lookup(uint32(3), &load))
	for _, epoch := range load.Epoch {
		all += epoch.Foreign
	}
	return all
}

func TestAnArrivalIsNotedAndNoPacketIsChanged(t *testing.T) {
	v6 := func(address string) netip.AddrPort { return netip.MustParseAddrPort(address) }
	cases := map[string]struct {
		segment packettest.Segment
		noted   bool
	}{
		"a SYN to a receiver":          {packettest.Segment{From: sender, To: receiver, Flags: 2}, true},
		"data to a receiver":           {packettest.Segment{From: sender, To: receiver, Flags: 0x10, Payload: make([]byte, 1000)}, true},
		"data to a receiver over IPv6": {packettest.Segment{From: v6("[fd00::2:2]:40000"), To: v6("[fd00::1:2]:5001"), Flags: 0x10, Payload: make([]byte, 9)}, true},
		"data to another pod":          {packettest.Segment{From: sender, To: stranger, Flags: 0x10}, false},
		"UDP to a receiver":            {packettest.Segment{From: sender, To: receiver, Protocol: 17, Payload: make([]byte, 100)}, false},
		"a fragment to a receiver":     {packettest.Segment{From: sender, To: receiver, Fragment: 0x2001}, false},
		"a frame with a VLAN tag":      {packettest.Segment{From: sender, To: receiver, VLAN: 7}, false},
		"half a header":                {packettest.Segment{From: sender, To: receiver, DataOffset: new(uint8(2))}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			objects := loadArrivals(t, 12_500_000)
			frame := c.segment.Frame()
			action, after, err := objects.NoteArrival.Test(frame)
			require.NoError(t, err)
			if action != next || !bytes.Equal(frame, after) {
				t.Errorf("the action is %d, the packet %x", int32(action), after)
			}
			var flow TransportCreditFlow
			err = objects.CreditFlows.Lookup(keyOf(c.segment.To, c.segment.From), &flow)
			if c.noted && (err != nil || flow.Path != 3) || !c.noted && err == nil {
				t.Errorf("of the flow is known %+v: %v", flow, err)
			}
		})
	}
}

func TestWhatIsCountedBySocketsIsNotForeign(t *testing.T) {
	objects := loadArrivals(t, 12_500_000)
	data := packettest.Segment{From: sender, To: receiver, Flags: 0x10, Payload: make([]byte, 1000)}
	key := keyOf(receiver, sender)
	require.NoError(t, objects.CreditFlows.Put(key, TransportCreditFlow{Path: 1, Counted: 1}))
	_, _, err := objects.NoteArrival.Test(data.Frame())
	require.NoError(t, err)
	if got := foreign(t, objects); got != 0 {
		t.Errorf("%d bytes of a counted flow are foreign", got)
	}
	var flow TransportCreditFlow
	require.NoError(t, objects.CreditFlows.Lookup(key, &flow))
	if flow.Path != 3 {
		t.Errorf("the flow has moved to path 3, and %d is remembered", flow.Path)
	}
	data.To = stranger
	_, _, err = objects.NoteArrival.Test(data.Frame())
	require.NoError(t, err)
	if got := foreign(t, objects); got != uint64(len(data.Frame())) {
		t.Errorf("%d bytes are foreign, of a frame of %d", got, len(data.Frame()))
	}
}

func TestNothingIsNotedOfANICOfNoPathNorOfAPathWithoutCapacity(t *testing.T) {
	data := packettest.Segment{From: sender, To: receiver, Flags: 0x10, Payload: make([]byte, 1000)}
	objects := loadArrivals(t, 0)
	_, _, err := objects.NoteArrival.Test(data.Frame())
	require.NoError(t, err)
	require.Zero(t, foreign(t, objects))
	require.NoError(t, objects.CreditNics.Delete(loopback))
	require.NoError(t, objects.CreditFlows.Delete(keyOf(receiver, sender)))
	_, _, err = objects.NoteArrival.Test(data.Frame())
	require.NoError(t, err)
	var flow TransportCreditFlow
	require.ErrorIs(t, objects.CreditFlows.Lookup(keyOf(receiver, sender), &flow), ebpf.ErrKeyNotExist)
}

const (
	vxlanPort  = 8472
	genevePort = 6081
)

// tunnels are all kinds that are looked into, with the bytes that IPv4 and they add.
var tunnels = map[string]struct {
	packettest.Tunnel
	around int
}{
	"VXLAN":               {packettest.Tunnel{Kind: packettest.VXLAN, Port: vxlanPort}, 50},
	"Geneve":              {packettest.Tunnel{Kind: packettest.Geneve, Port: genevePort}, 50},
	"Geneve with options": {packettest.Tunnel{Kind: packettest.Geneve, Port: genevePort, Options: make([]byte, 60)}, 110},
	"Geneve of IP":        {packettest.Tunnel{Kind: packettest.GeneveOfIP, Port: genevePort}, 36},
	"IP in IP":            {packettest.Tunnel{Kind: packettest.IPInIP}, 20},
}

// between is a tunnel from another node to this one, with outer headers of this version.
func between(tunnel packettest.Tunnel, version int) packettest.Tunnel {
	tunnel.From, tunnel.To = netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1")
	if version == 6 {
		tunnel.From, tunnel.To = netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::1")
	}
	return tunnel
}

// setTunnels has the node have tunnels of these kinds.
func setTunnels(t testing.TB, objects *TransportObjects, kinds uint32) {
	t.Helper()
	value := TransportTunnels{Kinds: kinds}
	for i, port := range []uint16{vxlanPort, genevePort} {
		value.Port[i], value.Kind[i] = bpf.Port(port), uint8(i+1)
		value.Filter |= 1 << ((value.Port[i] ^ value.Port[i]>>8) & 63) // port_bit()
	}
	require.NoError(t, objects.Tunnels.Put(uint32(0), value))
}

const allTunnels = 1 | 2 | 4

func TestAFlowInATunnelIsKnownByWhatIsInItAndItsHeadersAreForeign(t *testing.T) {
	ends := map[int][2]netip.AddrPort{
		4: {sender, receiver}, 6: {netip.MustParseAddrPort("[fd00::2:2]:40000"), netip.MustParseAddrPort("[fd00::1:2]:5001")},
	}
	for name, of := range tunnels {
		for _, outer := range []int{4, 6} {
			for inner, end := range ends {
				t.Run(fmt.Sprintf("%s, IPv%d over IPv%d", name, inner, outer), func(t *testing.T) {
					objects := loadArrivals(t, 12_500_000)
					setTunnels(t, objects, allTunnels)
					segment := packettest.Segment{From: end[0], To: end[1], Flags: 0x10, Payload: make([]byte, 1000)}
					frame := between(of.Tunnel, outer).Frame(segment.Frame())
					expectPassed(t, objects, frame)
					require.Equal(t, uint64(len(frame)), foreign(t, objects), "of a flow of which no socket has told anything")
					flow := TransportCreditFlow{}
					require.NoError(t, objects.CreditFlows.Lookup(keyOf(end[1], end[0]), &flow))
					require.Equal(t, uint32(3), flow.Path)
					flow.Counted = 1
					require.NoError(t, objects.CreditFlows.Put(keyOf(end[1], end[0]), flow))
					expectPassed(t, objects, frame)
					around := of.around
					if outer == 6 {
						around += 20
					}
					require.Equal(t, uint64(len(frame)+around), foreign(t, objects), "with the headers around a flow that is counted")
				})
			}
		}
	}
}

func expectPassed(t *testing.T, objects *TransportObjects, frame []byte) {
	t.Helper()
	action, after, err := objects.NoteArrival.Test(frame)
	require.NoError(t, err)
	require.Equal(t, next, action)
	require.True(t, bytes.Equal(frame, after), "the packet was changed")
}

func TestWhatIsInNoTunnelOfTheNodeIsForeign(t *testing.T) {
	data := packettest.Segment{From: sender, To: receiver, Flags: 0x10, Payload: make([]byte, 1000)}.Frame()
	to := func(port uint16) packettest.Tunnel { return packettest.Tunnel{Kind: packettest.VXLAN, Port: port} }
	cases := map[string]struct {
		tunnel packettest.Tunnel
		kinds  uint32
		inner  []byte
	}{
		"VXLAN to another port":                    {to(4789), allTunnels, data},
		"VXLAN where there are no tunnels":         {to(vxlanPort), 0, data},
		"IP in IP where there is VXLAN alone":      {packettest.Tunnel{Kind: packettest.IPInIP}, 1, data},
		"VXLAN with a flag that nobody knows":      {packettest.Tunnel{Kind: packettest.VXLAN, Port: vxlanPort, Flags: new(uint8(0x0c))}, allTunnels, data},
		"VXLAN with a VLAN's tag around it":        {packettest.Tunnel{Kind: packettest.VXLAN, Port: vxlanPort, VLAN: 7}, allTunnels, data},
		"a fragment of VXLAN":                      {packettest.Tunnel{Kind: packettest.VXLAN, Port: vxlanPort, Fragment: 0x2000}, allTunnels, data},
		"VXLAN with half a header of TCP":          {to(vxlanPort), allTunnels, data[:14+20+10]},
		"VXLAN with a packet to another pod":       {to(vxlanPort), allTunnels, packettest.Segment{From: sender, To: stranger, Flags: 0x10}.Frame()},
		"VXLAN with a tunnel of its own within it": {to(vxlanPort), allTunnels, between(to(vxlanPort), 4).Frame(data)},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			objects := loadArrivals(t, 12_500_000)
			setTunnels(t, objects, c.kinds)
			require.NoError(t, objects.CreditFlows.Put(keyOf(receiver, sender), TransportCreditFlow{Path: 1, Counted: 1}))
			frame := between(c.tunnel, 4).Frame(c.inner)
			expectPassed(t, objects, frame)
			require.Equal(t, uint64(len(frame)), foreign(t, objects))
			flow := TransportCreditFlow{}
			require.NoError(t, objects.CreditFlows.Lookup(keyOf(receiver, sender), &flow))
			require.Equal(t, uint32(1), flow.Path, "the flow's path")
		})
	}
}

// Subtract what an empty program takes; see docs/bench.md.
func BenchmarkArrival(b *testing.B) {
	data := func(to netip.AddrPort, protocol uint8) []byte {
		return packettest.Segment{From: sender, To: to, Flags: 0x10, Protocol: protocol, Payload: make([]byte, 1000)}.Frame()
	}
	vxlan := between(tunnels["VXLAN"].Tunnel, 4)
	for name, frame := range map[string][]byte{
		"ToReceiver": data(receiver, 0), "ToAnother": data(stranger, 0), "UDP": data(stranger, packettest.UDP),
		"ToReceiverInVXLAN": vxlan.Frame(data(receiver, 0)), "ToAnotherInVXLAN": vxlan.Frame(data(stranger, 0)),
	} {
		b.Run(name, func(b *testing.B) {
			objects := loadArrivals(b, 12_500_000)
			setTunnels(b, objects, allTunnels)
			require.NoError(b, objects.CreditFlows.Put(keyOf(receiver, sender), TransportCreditFlow{Path: 3, Counted: 1}))
			_, each, err := objects.NoteArrival.Benchmark(frame, max(b.N, 100_000), nil)
			require.NoError(b, err)
			b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
		})
	}
	b.Run("Empty", func(b *testing.B) {
		empty, err := packettest.NewEmpty()
		require.NoError(b, err)
		defer empty.Close()
		_, each, err := empty.Benchmark(data(receiver, 0), max(b.N, 100_000), nil)
		require.NoError(b, err)
		b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
	})
}
