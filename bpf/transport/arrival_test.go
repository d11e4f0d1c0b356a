// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"bytes"
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

// Subtract what an empty program takes; see docs/bench.md.
func BenchmarkArrival(b *testing.B) {
	for name, to := range map[string]netip.AddrPort{"ToReceiver": receiver, "ToAnother": stranger} {
		b.Run(name, func(b *testing.B) {
			objects := loadArrivals(b, 12_500_000)
			require.NoError(b, objects.CreditFlows.Put(keyOf(receiver, sender), TransportCreditFlow{Path: 3, Counted: 1}))
			frame := packettest.Segment{From: sender, To: to, Flags: 0x10, Payload: make([]byte, 1000)}.Frame()
			_, each, err := objects.NoteArrival.Benchmark(frame, max(b.N, 100_000), nil)
			require.NoError(b, err)
			b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
		})
	}
	b.Run("Empty", func(b *testing.B) {
		empty, err := packettest.NewEmpty()
		require.NoError(b, err)
		defer empty.Close()
		_, each, err := empty.Benchmark(packettest.Segment{From: sender, To: receiver}.Frame(), max(b.N, 100_000), nil)
		require.NoError(b, err)
		b.ReportMetric(float64(each.Nanoseconds()), "ns/packet")
	})
}
