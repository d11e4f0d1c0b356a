// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"braid.dev/braid/internal/lab/network"
)

// arrives tells whether a datagram comes from one node to an address of another.
func arrives(t *testing.T, from, to *network.Node, address string) bool {
	t.Helper()
	receiver, sender := datagrams(t, from, to, address)
	return oneArrives(t, receiver, sender)
}

// datagrams are sockets for them from one node to an address of another.
func datagrams(t *testing.T, from, to *network.Node, address string) (receiver net.PacketConn, sender net.Conn) {
	t.Helper()
	err := to.Do(func() (err error) {
		receiver, err = net.ListenPacket("udp", net.JoinHostPort(address, "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { receiver.Close() })
	err = from.Do(func() (err error) {
		sender, err = net.Dial("udp", receiver.LocalAddr().String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sender.Close() })
	return receiver, sender
}

func oneArrives(t *testing.T, receiver net.PacketConn, sender net.Conn) bool {
	t.Helper()
	deadline := time.Now().Add(500 * time.Millisecond)
	for time.Now().Before(deadline) {
		if _, err := sender.Write([]byte{1}); err != nil {
			t.Fatal(err)
		}
		if err := receiver.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := receiver.ReadFrom(make([]byte, 1)); err == nil {
			return true
		} else if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	return false
}

func TestABlockedPathLosesFramesAndKeepsItsCarrier(t *testing.T) {
	for name, delays := range map[string]map[string]time.Duration{
		"without a delay": nil, "with a delay": {"blue": time.Millisecond, "green": time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			n := build(t, network.Spec{PathDelays: delays})
			a, b := n.Nodes[0], n.Nodes[1]
			for _, node := range n.Nodes { // neighbours are known, so that one direction can be blocked alone
				arrives(t, node, n.Nodes[2-node.Number], n.Nodes[2-node.Number].Address(0, 4))
			}
			cases := []struct {
				name       string
				directions []network.Direction
				there      bool
				back       bool
			}{
				{"what the node sends", []network.Direction{network.FromNode}, false, true},
				{"what the node receives", []network.Direction{network.ToNode}, true, false},
				{"both", nil, false, false},
			}
			for _, c := range cases {
				block(t, n, a, true, c.directions...)
				if there, back := arrives(t, a, b, b.Address(0, 4)), arrives(t, b, a, a.Address(0, 4)); there != c.there || back != c.back {
					t.Errorf("%s is blocked: arrives there %v, back %v", c.name, there, back)
				}
				expectReach(t, a.Namespace, b.Namespace, b.Address(1, 4))
				expectCarrier(t, a, b)
				block(t, n, a, false, c.directions...)
				if !arrives(t, a, b, b.Address(0, 4)) || !arrives(t, b, a, a.Address(0, 4)) {
					t.Errorf("%s was blocked, and stays so", c.name)
				}
			}
		})
	}
}

func block(t *testing.T, n *network.Network, node *network.Node, blocked bool, directions ...network.Direction) {
	t.Helper()
	for range 2 { // what is so already stays so
		if err := n.Block(node, "blue", blocked, directions...); err != nil {
			t.Fatal(err)
		}
	}
}

func expectCarrier(t *testing.T, nodes ...*network.Node) {
	t.Helper()
	for _, node := range nodes {
		carrier, err := node.Command(context.Background(), "ip", "-oneline", "link", "show", "dev", "blue", "up").Output()
		if err != nil || len(carrier) == 0 || strings.Contains(string(carrier), "NO-CARRIER") {
			t.Errorf("%s's NIC has no carrier: %s %v", node.NodeName(), carrier, err)
		}
	}
}

func TestADelayChangesWhileThePathIsUsed(t *testing.T) {
	n := build(t, network.Spec{PathDelays: map[string]time.Duration{"blue": 20 * time.Millisecond}})
	a, b := n.Nodes[0], n.Nodes[1]
	for _, delay := range []time.Duration{20 * time.Millisecond, 80 * time.Millisecond, 5 * time.Millisecond} {
		if err := n.SetDelay("blue", delay); err != nil {
			t.Fatal(err)
		}
		if took := roundTrip(t, a.Namespace, b.Namespace, b.Address(0, 4)); took < 2*delay || took > 2*delay+15*time.Millisecond {
			t.Errorf("a round trip took %s with a delay of %s", took, delay)
		}
	}
	for path, delay := range map[string]time.Duration{"green": time.Millisecond, "blue": 0, "red": time.Millisecond} {
		if err := n.SetDelay(path, delay); err == nil {
			t.Errorf("a delay of %s for path %s was accepted", delay, path)
		}
	}
}

func TestAPathLosesAShareOfItsFramesUntilItIsUnblocked(t *testing.T) {
	n := build(t, network.Spec{})
	from, to := n.Nodes[0], n.Nodes[1]
	count := func() (lost int) {
		receiver, sender := datagrams(t, from, to, to.Address(0, 4))
		const sent = 200
		for range sent {
			if _, err := sender.Write([]byte{1}); err != nil {
				t.Fatal(err)
			}
		}
		for lost = sent; lost > 0; lost-- {
			if err := receiver.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
			if _, _, err := receiver.ReadFrom(make([]byte, 1)); err != nil {
				break
			}
		}
		return lost
	}
	if !arrives(t, from, to, to.Address(0, 4)) {
		t.Fatal("nothing arrives")
	}
	if err := n.Lose(from, n.Spec.Paths[0], 0.5); err != nil {
		t.Fatal(err)
	}
	if lost := count(); lost < 50 || lost > 150 {
		t.Errorf("%d of 200 frames were lost, where half should be", lost)
	}
	if err := n.Block(from, n.Spec.Paths[0], false); err != nil {
		t.Fatal(err)
	}
	if lost := count(); lost > 0 {
		t.Errorf("%d frames were lost after the end", lost)
	}
}
