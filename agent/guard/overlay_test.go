// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/lab/network"
)

// What a tunnel's device encapsulates leaves the NIC as the node's own. All tests of limits can be
// run that way (BRAID_E2E_NETWORK=vxlan); these are always.
var vxlan = network.Overlay{Outer: 4}

func TestACeilingHoldsOnTheWireInAnOverlay(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 2, Overlay: vxlan})
	from, to := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	l.tenant("tenant-1", "blue", mbit(30), 0)
	l.apply(t)
	t.Run("of TCP", func(t *testing.T) {
		serve(t, to, 4)
		wait := transfer(t, from, to, 4, transferFor(4))
		time.Sleep(settled)
		expectMost(t, "TCP", l.sent(t, measured, "blue"), 30, 0.8)
		wait()
	})
	t.Run("of datagrams from an address that is not the pod's", func(t *testing.T) {
		useAddress(t, from, "192.0.2.77")
		flood(t, from, to, 4, 1200, 80)
		time.Sleep(settled)
		expectMost(t, "UDP", l.sent(t, measured, "blue"), 30, 0.8)
	})
	t.Run("and not for a tenant that has none", func(t *testing.T) {
		flood(t, l.Pod("pod-1-2"), l.Pod("pod-2-2"), 6, 1200, 80)
		time.Sleep(settled)
		if found := rates(t, measured, l.Pod("pod-2-2"))[0]; found < 50 {
			t.Errorf("the other tenant sent %.2f of 80 Mbit/s", found)
		}
	})
}

// A pod may send what a node would, to another node's end of the tunnel: that is the pod's own all the
// same, whoever the packet within says that it is from.
func TestACeilingHoldsForWhatAPodPutsIntoATunnelItself(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 2, Overlay: vxlan})
	from, other := l.Pod("pod-1-1"), l.Pod("pod-1-2")
	within := packettest.Segment{
		From: netip.AddrPortFrom(netip.MustParseAddr(other.IPv4), 5555), To: netip.AddrPortFrom(netip.MustParseAddr(l.Pod("pod-2-2").IPv4), 9),
		Protocol: packettest.UDP, Payload: make([]byte, 1200),
	}
	own := packettest.Tunnel{
		From: netip.MustParseAddr(from.IPv4), To: netip.MustParseAddr(l.Nodes[1].Address(0, 4)), Port: network.TunnelPort,
	}.Frame(within.Frame())
	l.tenant("tenant-1", "blue", mbit(30), 0)
	l.datapaths(t)
	l.apply(t)
	const headers = 14 + 20 + 8 // of Ethernet, IP and UDP
	floodWith(t, from, net.JoinHostPort(l.Nodes[1].Address(0, 4), strconv.Itoa(network.TunnelPort)), own[headers:], 80)
	time.Sleep(settled)
	expectMost(t, "VXLAN of the pod's own", l.sent(t, measured, "blue"), 30, 0.8)
}

// Open vSwitch takes a pod's packets at its interface, and no route of the node's leads them.
func TestACeilingHoldsBehindOpenVSwitch(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	err := l.LaySwitches()
	if errors.Is(err, network.ErrNoSwitch) {
		t.Skip(err)
	}
	require.NoError(t, err)
	l.state.Tunnels = tunnelsOf(t, l.Nodes[0])
	from, to := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	flood(t, from, to, 4, 1200, 80)
	time.Sleep(settled)
	require.Greater(t, l.sent(t, measured, "blue")[0], 60.0, "Mbit/s without a ceiling")
	l.tenant("tenant-1", "blue", mbit(30), 0)
	l.apply(t)
	time.Sleep(settled)
	expectMost(t, "UDP", l.sent(t, measured, "blue"), 30, 0.8)
}

func TestACeilingOnOnePathLeavesOtherSubflowsAloneInAnOverlay(t *testing.T) {
	limitOnePath(t, vxlan, true)
}

// Whoever ends the run, as Cilium's programs do, must not come between.
func TestSendersAreNamedAndMeteredBeforeOthersEndTheRun(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1, Overlay: vxlan})
	l.guardEverything(t)
	l.endRuns(t, endingProgram(t), network.TunnelDevice, "blue")
	l.datapaths(t)
	l.apply(t)
	for name, want := range map[string][]string{
		network.TunnelDevice: {"to_tunnel", "name_sender", "ending"}, "blue": {"to_uplink", "meter", "ending"},
	} {
		if names := l.programs(t, name, ebpf.AttachTCXEgress); !slices.Equal(names, want) {
			t.Errorf("%s has %v instead of %v", name, names, want)
		}
	}
}

// By TC_ACT_OK they have the kernel clear what was written into tc_index.
func TestACeilingHoldsInAnOverlayBesideProgramsThatEndTheRun(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1, Overlay: vxlan})
	from, to := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	l.tenant("tenant-1", "blue", mbit(30), 0)
	l.datapaths(t)
	l.apply(t)
	l.endRuns(t, endingProgram(t), network.TunnelDevice, "blue")
	for name, length := range map[string]int{"datagrams": 1200, "fragments": 4000} {
		t.Run(name, func(t *testing.T) {
			flood(t, from, to, 4, length, 80)
			time.Sleep(settled)
			expectMost(t, name, l.sent(t, measured, "blue"), 30, 0.8)
		})
	}
}

// endRuns attaches a program that ends the run at the egress of the first node's interfaces.
func (l *lab) endRuns(t *testing.T, ending *ebpf.Program, names ...string) {
	t.Helper()
	for _, name := range names {
		index, err := l.Nodes[0].Index(name)
		require.NoError(t, err)
		require.NoError(t, l.Nodes[0].Do(func() error {
			attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: ending, Attach: ebpf.AttachTCXEgress})
			if err == nil {
				t.Cleanup(func() { attached.Close() })
			}
			return err
		}))
	}
}

func endingProgram(t *testing.T) *ebpf.Program {
	t.Helper()
	const accept = 0 // TC_ACT_OK
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "ending", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, accept), asm.Return()},
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

func TestForgedSourcesDoNotGetIntoAnOverlay(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1, Overlay: vxlan})
	l.state.Endpoints[0].Guard = &v1alpha1.PlanGuard{SpoofCheck: true}
	l.apply(t)
	from, to := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	useAddress(t, from, "192.0.2.77")
	before, err := from.Node.Counters(network.TunnelDevice)
	require.NoError(t, err)
	flood(t, from, to, 4, 100, 1)
	time.Sleep(settled)
	after, err := from.Node.Counters(network.TunnelDevice)
	require.NoError(t, err)
	if l.metric(t, "braid_guard_spoofed_packets_total", "pod", "pod-1-1") == 0 || after.TxPackets > before.TxPackets+10 {
		t.Errorf("%d packets got into the tunnel", after.TxPackets-before.TxPackets)
	}
}

// useAddress has a pod send from an address that is not its own.
func useAddress(t *testing.T, pod *network.Pod, address string) {
	t.Helper()
	for _, line := range []string{
		"ip address add " + address + "/32 dev lo", "ip route replace default via 169.254.1.1 dev eth0 src " + address,
	} {
		words := strings.Fields(line)
		_, err := pod.Run(words[0], words[1:]...)
		require.NoError(t, err)
	}
}
