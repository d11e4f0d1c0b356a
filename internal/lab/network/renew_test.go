// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"errors"
	"os/exec"
	"testing"

	"github.com/vishvananda/netlink"

	"braid.dev/braid/internal/lab/network"
)

// nic is what a node's interface is.
func nic(t *testing.T, node *network.Node, name string) *netlink.LinkAttrs {
	t.Helper()
	handle, err := node.Handle()
	if err != nil {
		t.Fatal(err)
	}
	link, err := handle.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs()
}

// startInside starts a command, and returns once it runs on the node: nsenter first has to get there.
func startInside(t *testing.T, node *network.Node, command ...string) *exec.Cmd {
	t.Helper()
	started := node.Command(t.Context(), "sh", append([]string{"-c", `echo; exec "$@"`, "sh"}, command...)...)
	out, err := started.StdoutPipe()
	if err := errors.Join(err, started.Start()); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return started
}

func TestARenewedNodeIsEmptyAndReachable(t *testing.T) {
	n := build(t, network.Spec{LinkMbit: 100})
	a, b := n.Nodes[0], n.Nodes[1]
	if err := b.Pods[0].Delete(); err != nil {
		t.Fatal(err)
	}
	b.Pods = nil
	command := startInside(t, b, "sleep", "600")
	address := nic(t, b, "blue").HardwareAddr.String()
	if _, err := b.Run("ip", "rule", "add", "priority", "99", "lookup", "99"); err != nil {
		t.Fatal(err)
	}
	if err := n.Renew(b); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err == nil {
		t.Error("what ran on the node ended by itself")
	}
	if now := nic(t, b, "blue").HardwareAddr.String(); now != address {
		t.Errorf("the hardware address was %s and is %s", address, now)
	}
	if rules, err := b.Run("ip", "rule", "show", "priority", "99"); err != nil || rules != "" {
		t.Errorf("a rule outlived the node: %s%v", rules, err)
	}
	if _, err := b.AddPod("after"); err != nil {
		t.Fatal(err)
	}
	for _, version := range []int{4, 6} {
		expectReach(t, a.Namespace, b.Namespace, b.Address(1, version))
		expectReach(t, a.Pods[0].Namespace, b.Pods[0].Namespace, b.Pods[0].Address(version))
	}
}

func TestANICIsUnpluggedAndPluggedInAgain(t *testing.T) {
	n := build(t, network.Spec{LinkMbit: 100})
	a, b := n.Nodes[0], n.Nodes[1]
	before := nic(t, b, "green").Index
	if err := b.Unplug("green"); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Index("green"); err == nil {
		t.Error("the NIC is still there")
	}
	if err := b.Plug("green"); err != nil {
		t.Fatal(err)
	}
	if now := nic(t, b, "green").Index; now == before {
		t.Error("the NIC is the old one")
	}
	expectReach(t, a.Namespace, b.Namespace, b.Address(1, 4))
}
