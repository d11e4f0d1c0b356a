// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"net"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/internal/lab/network"
)

// seen counts packets that come from a pod to its node: all of them, and those with a
// socket of TCP. Neighbours are looked for with sockets of the kernel's own.
type seen struct {
	counts *ebpf.Map
}

const (
	everyPacket = iota
	withSocket
)

const (
	socketOffset   = 168 // of sk in struct __sk_buff
	protocolOffset = 12  // of protocol in struct bpf_sock
	protocolTCP    = 6
	next           = -1
)

func watch(t *testing.T, pod *network.Pod) *seen {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	count := func(which int64) asm.Instructions {
		return asm.Instructions{
			asm.StoreImm(asm.RFP, -4, which, asm.Word),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.AddAtomic.Mem(asm.R0, asm.R1, asm.DWord, 0),
		}
	}
	program := append(asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}, count(everyPacket)...)
	program = append(program,
		asm.LoadMem(asm.R1, asm.R6, socketOffset, asm.DWord), asm.JEq.Imm(asm.R1, 0, "out"),
		asm.FnSkFullsock.Call(), asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(asm.R0, asm.R0, protocolOffset, asm.Word), asm.JNE.Imm(asm.R0, protocolTCP, "out"),
	)
	program = append(program, count(withSocket)...)
	program = append(program, asm.Mov.Imm(asm.R0, next).WithSymbol("out"), asm.Return())
	loaded, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: program})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { loaded.Close() })
	index, err := pod.Node.Index(pod.HostInterface)
	if err != nil {
		t.Fatal(err)
	}
	err = pod.Node.Do(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: loaded, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return &seen{counts}
}

func (s *seen) count(t *testing.T, which uint32) (value uint64) {
	t.Helper()
	if err := s.counts.Lookup(which, &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func TestANodeSeesTheSocketsOfItsPodsAndNotThoseOfGuests(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1, GuestsPerNode: 1})
	server := n.Pod("pod-2-1")
	for _, binding := range []network.Binding{network.BindingBridge, network.BindingMasquerade} {
		if _, err := n.Nodes[0].AddGuestBy(binding, string(binding)); err != nil {
			t.Fatal(err)
		}
	}
	for name, expected := range map[string]bool{"pod-1-1": true, "guest-1-1": false, "bridge": false, "masquerade": false} {
		t.Run(name, func(t *testing.T) {
			pod := n.Pod(name)
			seen := watch(t, pod)
			send(t, pod, server, 1<<20)
			all, sockets := seen.count(t, everyPacket), seen.count(t, withSocket)
			if all < 10 || (sockets > 0) != expected {
				t.Errorf("%d packets, %d of them with a socket", all, sockets)
			}
		})
	}
}

func TestGuestsAreReachedAsPodsAre(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1, GuestsPerNode: 2, LinkMbit: 100})
	guest, other, pod := n.Pod("guest-1-1"), n.Pod("guest-2-2"), n.Pod("pod-2-1")
	for _, version := range []int{4, 6} {
		expectReach(t, guest.Namespace, other.Namespace, other.Address(version))
		expectReach(t, guest.Namespace, pod.Namespace, pod.Address(version))
		expectReach(t, pod.Namespace, guest.Namespace, guest.Address(version))
		expectReach(t, guest.Node.Namespace, guest.Namespace, guest.Address(version))
	}
}

func TestAGuestBehindAMasqueradeHasThePodsAddressOutside(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1, LinkMbit: 100})
	guest, err := n.Nodes[0].AddGuestBy(network.BindingMasquerade, "masquerade")
	if err != nil {
		t.Fatal(err)
	}
	pod := n.Pod("pod-2-1")
	for _, version := range []int{4, 6} {
		listener, err := pod.Listen(t.Context(), "tcp", net.JoinHostPort(pod.Address(version), "0"))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		client, err := guest.Dial(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		if from := server.RemoteAddr().(*net.TCPAddr).IP.String(); from != guest.Address(version) {
			t.Errorf("the guest's connection comes from %s", from)
		}
		if own := client.LocalAddr().(*net.TCPAddr).IP.String(); own == guest.Address(version) {
			t.Errorf("the guest has the pod's address %s itself", own)
		}
	}
}
