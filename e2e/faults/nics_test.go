// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"slices"
	"testing"

	"braid.dev/braid/internal/lab/network"
)

func (s *scene) node(name string) *network.Node {
	return s.Network.Nodes[slices.IndexFunc(s.Network.Nodes, func(n *network.Node) bool { return n.NodeName() == name })]
}

// run runs a command in a node, and another one to undo it.
func (s *scene) run(t *testing.T, node *network.Node, do, undo []string) {
	t.Helper()
	s.mend(func() { s.must(t, node, undo...) })
	s.must(t, node, do...)
}

func (s *scene) must(t *testing.T, node *network.Node, command ...string) {
	t.Helper()
	if out, err := node.Run(command[0], command[1:]...); err != nil {
		t.Errorf("%v: %v: %s", command, err, out)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

func setDown(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.mend(func() { check(t, s.Network.SetNIC(s.node(node), nic, true)) })
		check(t, s.Network.SetNIC(s.node(node), nic, false))
	}
}

func carrierLost(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.mend(func() { check(t, s.Network.SetCarrier(s.node(node), nic, true)) })
		check(t, s.Network.SetCarrier(s.node(node), nic, false))
	}
}

func lowerMTU(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.run(t, s.node(node), []string{"ip", "link", "set", nic, "mtu", "1400"}, []string{"ip", "link", "set", nic, "mtu", "1500"})
	}
}

func filterStrictly(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		key := "net.ipv4.conf." + nic + ".rp_filter"
		s.mend(func() { check(t, s.node(node).Sysctl(key, "0")) })
		check(t, s.node(node).Sysctl(key, "1"))
	}
}

func loseAddresses(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		on, i := s.node(node), slices.Index(paths, nic)
		s.mend(func() {
			check(t, on.AddAddress(nic, on.Address(i, 4)+"/24"))
			check(t, on.AddAddress(nic, on.Address(i, 6)+"/64"))
		})
		s.must(t, on, "ip", "address", "flush", "dev", nic, "scope", "global")
	}
}

func rename(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		on, i := s.node(node), slices.Index(paths, nic)
		s.mend(func() {
			s.must(t, on, "sh", "-c", "ip link set lan7 down && ip link set lan7 name "+nic+" && ip link set "+nic+" up")
			s.must(t, on, "ip", "address", "replace", on.Address(i, 6)+"/64", "dev", nic, "nodad")
		})
		s.must(t, on, "sh", "-c", "ip link set "+nic+" down && ip link set "+nic+" name lan7 && ip link set lan7 up")
	}
}

// bridge makes a NIC a port of a bridge, as somebody does who wants VMs on the NIC's network.
func bridge(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.run(t, s.node(node), []string{"sh", "-c", "ip link add br7 type bridge && ip link set br7 up && ip link set " + nic + " master br7"},
			[]string{"ip", "link", "delete", "br7"})
	}
}

func unplug(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.mend(func() { check(t, s.node(node).Plug(nic)) })
		check(t, s.node(node).Unplug(nic))
	}
}

func block(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.mend(func() { check(t, s.Network.Block(s.node(node), nic, false)) })
		check(t, s.Network.Block(s.node(node), nic, true))
	}
}

func lose(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.mend(func() { check(t, s.Network.Block(s.node(node), nic, false)) })
		check(t, s.Network.Lose(s.node(node), nic, 0.18)) // each way
	}
}

func loseLarge(node, nic string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		s.mend(func() { check(t, s.Network.Block(s.node(node), nic, false)) })
		check(t, s.Network.LoseLarge(s.node(node), nic, 1400))
	}
}

// firewall has nftables drop what matches, where it comes in.
func firewall(node, name, rule string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		table := "table inet " + name
		s.run(t, s.node(node), []string{"nft", "add " + table + "; add chain inet " + name + " in { type filter hook prerouting priority -300; }; add rule inet " + name + " in " + rule + " drop"},
			[]string{"nft", "delete " + table})
	}
}

func dropProbes(node, nic string) func(*testing.T, *scene) {
	return firewall(node, "probes", "iifname "+nic+" udp dport 8478")
}
