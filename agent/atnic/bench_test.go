// SPDX-License-Identifier: Apache-2.0

package atnic

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
)

const (
	floodPackets = 500_000
	sourcePortAt = 34 // of TCP behind Ethernet and IPv4
	xdpDrop      = 1
)

// flooder sends each frame by an interface, from another port each. The kernel gives it the
// same buffers again, in which a node that forwards has changed what comes before the ports.
func flooder(b *testing.B, index int, frame []byte) *ebpf.Program {
	b.Helper()
	var restore asm.Instructions
	for at := int16(0); at < sourcePortAt; at += 2 {
		restore = append(restore, asm.StoreImm(asm.R2, at, int64(binary.NativeEndian.Uint16(frame[at:])), asm.Half))
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "flooder", Type: ebpf.XDP, License: "GPL", Instructions: slices.Concat(asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.FnGetPrandomU32.Call(),
		asm.LoadMem(asm.R2, asm.R6, 0, asm.Word),
		asm.LoadMem(asm.R3, asm.R6, 4, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, sourcePortAt+2),
		asm.JGT.Reg(asm.R4, asm.R3, "short"),
		asm.StoreMem(asm.R2, sourcePortAt, asm.R0, asm.Half),
	}, restore, asm.Instructions{
		asm.Mov.Imm(asm.R1, int32(index)),
		asm.Mov.Imm(asm.R2, 0),
		asm.FnRedirect.Call(),
		asm.Return(),
		asm.Mov.Imm(asm.R0, xdpDrop).WithSymbol("short"),
		asm.Return(),
	})})
	require.NoError(b, err)
	b.Cleanup(func() { program.Close() })
	return program
}

// answering is a program that gives this verdict.
func answering(b *testing.B, verdict int32) *ebpf.Program {
	b.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "answering", Type: ebpf.XDP, AttachType: ebpf.AttachXDP, License: "GPL", Flags: unix.BPF_F_XDP_HAS_FRAGS,
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, verdict), asm.Return()},
	})
	require.NoError(b, err)
	b.Cleanup(func() { program.Close() })
	return program
}

// flood is a node whose NIC a machine floods with SYNs that a rule of the node's pod drops.
type flood struct {
	*lab
	peer    *network.Namespace
	flooder *ebpf.Program
	frame   []byte
}

func newFlood(b *testing.B) *flood {
	b.Helper()
	f := &flood{lab: newLab(b), peer: network.NamespaceForTest(b)}
	require.NoError(b, network.Connect(f.Nodes[0].Namespace, "flood", f.peer, "flood", network.Options{}))
	f.nics = []node.Path{f.pathOf("flood")}
	index, err := f.peer.Index("flood")
	require.NoError(b, err)
	f.frame = packettest.Segment{
		From: netip.MustParseAddrPort("192.0.2.1:1"), To: netip.AddrPortFrom(netip.MustParseAddr(f.addresses()[0]), closedPort), Flags: 2, Window: 1000,
	}.Frame()
	copy(f.frame, f.nics[0].Found.MAC)
	f.flooder = flooder(b, index, f.frame)
	f.inNode(func() error { return f.Nodes[0].Sysctl("net.ipv4.conf.flood.rp_filter", "0") })
	f.apply(drop("closed", toClosedPort()))
	f.serve(f.addresses()[0])
	require.NoError(b, f.talk(f.addresses()[0], "5001"), "so that the node knows the pod's neighbour entry")
	require.Equal(b, v1alpha1.XDPNative, f.state("flood").State)
	return f
}

// took is how long a packet takes to be sent and dropped, with this program at the NIC.
func (f *flood) took(program *ebpf.Program) time.Duration {
	f.t.Helper()
	f.inNode(func() error { return f.part.hook.Attach(f.nics[0].Interface, program) })
	begun := time.Now()
	require.NoError(f.t, f.peer.Do(func() error {
		_, err := f.flooder.Run(&ebpf.RunOptions{Data: f.frame, Repeat: floodPackets, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES})
		return err
	}))
	return time.Since(begun) / floodPackets
}

// tookWithTheRule checks too that it was the pod's rule that dropped them.
func (f *flood) tookWithTheRule(program *ebpf.Program) time.Duration {
	f.t.Helper()
	before := f.hits()
	took := f.took(program)
	require.Greater(f.t, f.hits()-before, uint64(floodPackets/100*99), "packets that the rule dropped")
	return took
}

// BenchmarkAFloodThatARuleDrops compares by turns, in one run and on one processor, what a
// packet costs that a rule drops at the NIC and at the pod's interface, above one that a
// program of two instructions drops at the NIC: what it takes to make and to send it.
func BenchmarkAFloodThatARuleDrops(b *testing.B) {
	f := newFlood(b)
	nothing, pass := answering(b, xdpDrop), answering(b, xdpPass)
	var sent, atNIC, atEndpoint []time.Duration
	for b.Loop() {
		sent = append(sent, f.took(nothing))
		atNIC = append(atNIC, f.tookWithTheRule(f.part.objects.atNIC))
		atEndpoint = append(atEndpoint, f.tookWithTheRule(pass))
	}
	b.ReportMetric(0, "ns/op")
	for name, all := range map[string][]time.Duration{"sent": sent, "nic": atNIC, "endpoint": atEndpoint} {
		slices.Sort(all)
		for of, at := range map[string]int{"least": 0, "median": len(all) / 2, "most": len(all) - 1} {
			b.ReportMetric(float64(all[at].Nanoseconds()), name+"-"+of+"-ns/packet")
		}
	}
}
