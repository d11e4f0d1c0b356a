// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// recorder is a program that notes the tc_index of what was forwarded.
func recorder(t *testing.T) (*ebpf.Program, *ebpf.Map) {
	t.Helper()
	noted, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
	require.NoError(t, err)
	t.Cleanup(func() { noted.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R7, asm.R1, packettest.TCIndexOffset, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, packettest.TCIndexOffset-8, asm.Word), // ingress_ifindex
		asm.JEq.Imm(asm.R2, 0, "pass"),
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, noted.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "pass"),
		asm.StoreMem(asm.R0, 0, asm.R7, asm.Word),
		asm.Mov.Imm(asm.R0, int32(next)).WithSymbol("pass"),
		asm.Return(),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return program, noted
}

// What comes in by green is forwarded to blue, which stands for a tunnel's device.
func TestTheOriginOfAPacketIsNotedBeforeItIsEncapsulated(t *testing.T) {
	n := newNode(t)
	w := &wire{node: n}
	program, noted := recorder(t)
	w.attach(t, n.into, egress, n.nics[blue], first)
	w.attach(t, program, egress, n.nics[blue], last)
	handle, err := n.Handle()
	require.NoError(t, err)
	nic, err := handle.LinkByName(pathNames[green])
	require.NoError(t, err)
	peer := packetSocket(t, n.peer, pathNames[green])
	by := func(of uint32) uint32 { return uplink.OriginTunnel | of }
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		stranger := e
		stranger.pod = netip.AddrPortFrom(netip.MustParseAddr(map[int]string{4: "10.244.1.99", 6: "fd00:244:1::99"}[version]), 1)
		for name, c := range map[string]struct {
			from ends
			at   uint32 // of the endpoint
			want uint32
		}{
			"an endpoint's own":              {e, n.nics[green], by(uplink.OriginMayHaveFlows | uplink.OriginEndpoint | thePod)},
			"an endpoint's, not known where": {e, 0, by(uplink.OriginMayHaveFlows | uplink.OriginEndpoint | thePod)},
			"another's with its address":     {e, n.nics[red], by(uplink.OriginMayHaveFlows | uplink.OriginForged | n.nics[green])},
			"nobody's":                       {stranger, 0, by(n.nics[green])},
		} {
			t.Run(name, func(t *testing.T) {
				put(t, n.maps.Endpoints, address(e.pod.Addr()), uplink.ToUplinkEndpoint{Id: thePod, Weights: weights(1, 1, 1), Interface: c.at})
				put(t, noted, uint32(0), uint32(0))
				frame := c.from.out().frame()
				copy(frame, nic.Attrs().HardwareAddr)
				testutil.Retry(t, 5*time.Second, func() error {
					send(t, peer, virtioHeader{}, frame)
					if got := *lookup[uint32](t, noted, uint32(0)); got != c.want {
						return fmt.Errorf("tc_index is %#x instead of %#x", got, c.want)
					}
					return nil
				})
			})
		}
	})
}

// noted is what from_uplink writes of a path into tc_index.
func noted(path uint32) uint32 { return uplink.Arrival | path<<uplink.ArrivalPathShift }

// Cilium would take a packet with the lowest of these for one that has passed the proxy of
// its policies, and let it by them.
func TestWhatIsNotedOfAPathLeavesTheBitsOfOthersAlone(t *testing.T) {
	const ciliums = 0xf
	for path := range uint32(uplink.MaxPaths) {
		if noted(path)&ciliums != 0 {
			t.Errorf("path %d is noted as %#x", path, noted(path))
		}
	}
}

// A tunnel's device forgets by which NIC a packet came in.
func TestThePathOfAPacketIsNotedBeforeItIsUnwrapped(t *testing.T) {
	n := newNode(t)
	w := &wire{node: n}
	program, seen := recorder(t)
	w.attach(t, n.from, ingress, n.nics[green], first)
	w.attach(t, program, ingress, n.nics[green], last)
	peer := packetSocket(t, n.peer, pathNames[green])
	expect := func(t *testing.T, frame []byte, want uint32) {
		t.Helper()
		put(t, seen, uint32(0), ^uint32(0))
		testutil.Retry(t, 5*time.Second, func() error {
			send(t, peer, virtioHeader{}, frame)
			if got := *lookup[uint32](t, seen, uint32(0)); got != want {
				return fmt.Errorf("tc_index is %#x instead of %#x", got, want)
			}
			return nil
		})
	}
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		expect(t, back(tunnel).Frame(e.out().flip().frame()), noted(green))
		expect(t, e.out().flip().frame(), 0)
	})
}
