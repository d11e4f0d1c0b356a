// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"errors"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// expectTaggedTransfers: connections of the VM fill all paths, both ways, and nobody but the
// guest and its host sees announced ports.
func (l *lab) expectTaggedTransfers(t *testing.T, legs ...traffic.Direction) {
	t.Helper()
	seen := watch(t, l.Nodes[0].Namespace, "prerouting")
	for _, version := range []int{4, 6} {
		to := l.serve(t, version)
		for _, direction := range legs {
			result, shares := l.transfer(t, to, direction)
			t.Logf("IPv%d %s: %.1f Mbit/s, %v", version, direction, result.Mbit, shares)
			require.Equal(t, 3, result.Subflows)
			for path, share := range shares {
				require.Greater(t, share, 0.15, "%s carries %.0f %% of it", path, 100*share)
			}
		}
	}
	require.Equal(t, 3, strings.Count(seen(), nothingSeen), seen())
	require.Equal(t, v1alpha1.GuestJoined, l.status(t).GuestSubflows)
}

// tagging is a program that tags what passes as a VLAN's interface does, beside the frame, or
// one that takes the tag away.
func tagging(t *testing.T, tags bool) *ebpf.Program {
	t.Helper()
	instructions := asm.Instructions{asm.FnSkbVlanPop.Call()}
	if tags {
		const etherVLAN = 0x0081 // 802.1Q's, as it is on the wire
		instructions = asm.Instructions{asm.Mov.Imm(asm.R2, etherVLAN), asm.Mov.Imm(asm.R3, 10), asm.FnSkbVlanPush.Call()}
	}
	const next = -1
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "GPL", Instructions: append(instructions, asm.Mov.Imm(asm.R0, next), asm.Return()),
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

// tag tags all that passes an interface, and untags what comes in by it.
func tag(t *testing.T, in *network.Namespace, name string) {
	t.Helper()
	index, err := in.Index(name)
	require.NoError(t, err)
	for hook, tags := range map[ebpf.AttachType]bool{ebpf.AttachTCXEgress: true, ebpf.AttachTCXIngress: false} {
		require.NoError(t, in.Do(func() error {
			attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: tagging(t, tags), Attach: hook})
			if err == nil {
				t.Cleanup(func() { attached.Close() })
			}
			return err
		}))
	}
}

// All frames between the VM and its host have tags, without an interface for the VLAN, which
// not every kernel has.
func TestOneConnectionOfAVMWhoseFramesAreTaggedFillsAllPaths(t *testing.T) {
	l := newLab(t)
	l.follow(t)
	pod := l.Pod("guest-1-1")
	tag(t, pod.Forwarder, "eth0")
	tag(t, l.Nodes[0].Namespace, pod.HostInterface)
	l.apply(t)
	l.expectTaggedTransfers(t, traffic.Up, traffic.Down)
}

// vlan is how the network of a VM is a VLAN's.
type vlan struct {
	// interfaces that are added at each end, each on the one before.
	guest, host [][]string
}

// vlans have in the place of TAP the VM's interface on the host; the last one of each end gets
// its addresses and routes.
var vlans = map[string]vlan{
	"an interface for the VLAN on the tap": {
		guest: [][]string{{"link", "add", "link", "eth0", "name", "v10", "type", "vlan", "id", "10"}},
		host:  [][]string{{"link", "add", "link", "TAP", "name", "v10", "type", "vlan", "id", "10"}},
	},
	"one behind that of a provider": {
		guest: [][]string{
			{"link", "add", "link", "eth0", "name", "v20", "type", "vlan", "proto", "802.1ad", "id", "20"}, {"link", "set", "v20", "up"},
			{"link", "add", "link", "v20", "name", "v10", "type", "vlan", "id", "10"},
		},
		host: [][]string{
			{"link", "add", "link", "TAP", "name", "v20", "type", "vlan", "proto", "802.1ad", "id", "20"}, {"link", "set", "v20", "up"},
			{"link", "add", "link", "v20", "name", "v10", "type", "vlan", "id", "10"},
		},
	},
	"one on a bridge that has the tap": {
		guest: [][]string{{"link", "add", "link", "eth0", "name", "v10", "type", "vlan", "id", "10"}},
		host: [][]string{
			{"link", "add", "vms", "type", "bridge", "vlan_filtering", "1"}, {"link", "set", "TAP", "master", "vms"}, {"link", "set", "vms", "up"},
			{"link", "add", "link", "vms", "name", "v10", "type", "vlan", "id", "10"},
		},
	},
}

// skipWithoutVLAN ends a test on a kernel that was built without VLANs: make test-kernels runs
// it on others.
func skipWithoutVLAN(t *testing.T, pod *network.Pod) {
	t.Helper()
	index, err := pod.Node.Index(pod.HostInterface)
	require.NoError(t, err)
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.ParentIndex = "probe", index
	err = pod.Node.Do(func() error { return netlink.LinkAdd(&netlink.Vlan{LinkAttrs: attributes, VlanId: 10}) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no VLAN interfaces (CONFIG_VLAN_8021Q)")
	}
	require.NoError(t, err)
	_, err = pod.Node.Run("ip", "link", "delete", "probe")
	require.NoError(t, err)
}

// moveTo makes the link between the VM and its host a VLAN's.
func (v vlan) moveTo(t *testing.T, pod *network.Pod) {
	t.Helper()
	run := func(in *network.Namespace, arguments ...string) {
		t.Helper()
		for i := range arguments {
			arguments[i] = strings.Replace(arguments[i], "TAP", pod.HostInterface, 1)
		}
		_, err := in.Run("ip", arguments...)
		require.NoError(t, err, arguments)
	}
	for _, command := range v.guest {
		run(pod.Forwarder, command...)
	}
	for _, command := range v.host {
		run(pod.Node.Namespace, command...)
	}
	if len(v.host) == 4 { // the bridge
		for _, port := range [][]string{{"dev", pod.HostInterface}, {"dev", "vms", "self"}} {
			_, err := pod.Node.Run("bridge", append([]string{"vlan", "add", "vid", "10"}, port...)...)
			require.NoError(t, err)
		}
	}
	for in, from := range map[*network.Namespace]string{pod.Forwarder: "eth0", pod.Node.Namespace: pod.HostInterface} {
		moveAddresses(t, in, from, "v10")
	}
	require.NoError(t, pod.Forwarder.Sysctl("net.ipv4.conf.v10.proxy_arp", "1"))
	require.NoError(t, pod.Forwarder.Sysctl("net.ipv6.conf.v10.proxy_ndp", "1"))
	run(pod.Forwarder, "-6", "neighbour", "add", "proxy", pod.IPv6, "dev", "v10")
}

// moveAddresses moves an interface's addresses and routes.
func moveAddresses(t *testing.T, in *network.Namespace, from, to string) {
	t.Helper()
	handle, err := in.Handle()
	require.NoError(t, err)
	old, err := handle.LinkByName(from)
	require.NoError(t, err)
	require.NoError(t, in.SetUp(to))
	index, err := in.Index(to)
	require.NoError(t, err)
	routes, err := handle.RouteList(old, netlink.FAMILY_ALL)
	require.NoError(t, err)
	addresses, err := handle.AddrList(old, netlink.FAMILY_ALL)
	require.NoError(t, err)
	for _, address := range addresses {
		address.Label = ""
		require.NoError(t, handle.AddrDel(old, &address))
		_, err := in.Run("ip", "address", "replace", address.IPNet.String(), "dev", to, "nodad")
		require.NoError(t, err)
	}
	for _, route := range routes {
		if route.Protocol == unix.RTPROT_KERNEL {
			continue
		}
		_ = handle.RouteDel(&route)
		route.LinkIndex, route.Flags = index, route.Flags|int(netlink.FLAG_ONLINK)
		if route.Gw == nil {
			route.Flags = 0
		}
		require.NoError(t, handle.RouteReplace(&route), "%v", route)
	}
}

func TestOneConnectionOfAVMInAVLANFillsAllPaths(t *testing.T) {
	for name, v := range vlans {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			pod := l.Pod("guest-1-1")
			skipWithoutVLAN(t, pod)
			l.follow(t)
			v.moveTo(t, pod)
			l.tagged = true
			require.NoError(t, l.Nodes[0].Do(func() error { return l.state(t, 0).Apply(t.Context(), l.datapaths[0], l.builder) }))
			l.apply(t)
			l.expectTaggedTransfers(t, traffic.Up, traffic.Down)
		})
	}
}
