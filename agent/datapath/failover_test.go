// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// setUp says in all states whether a node's NIC on a path is up, and what is up answers,
// as probes would find: else flows that left it by themselves wait for two seconds.
func (l *lab) setUp(t *testing.T, states []State, node int, path string, up bool) {
	t.Helper()
	for i := range states {
		for p := range states[i].Paths {
			if i == node && states[i].Paths[p].Name == path {
				states[i].Paths[p].Up = up
			}
		}
		for _, peer := range states[i].Peers {
			if there, ok := peer.Paths[path]; ok && peer.Name == l.Nodes[node].NodeName() {
				there.Up = up
				peer.Paths[path] = there
			}
		}
	}
	for i := range states {
		l.apply(t, i, states[i])
		if up {
			l.datapaths[i].NoteAnswer(l.Nodes[1-i].NodeName(), path)
		}
	}
}

func TestADeadPathsFlowsUseTheOthersAndComeBack(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name      string
		node      int // whose NIC goes down
		set       func(*lab, *network.Node, bool) error
		direction traffic.Direction
	}{
		{"the carrier is lost at the initiator", 0, (*lab).setCarrier, traffic.Up},
		{"the NIC is set down at the initiator", 0, (*lab).setNIC, traffic.Up},
		{"the carrier is lost at the responder", 1, (*lab).setCarrier, traffic.Up},
		{"the NIC is set down at the sending responder", 1, (*lab).setNIC, traffic.Down},
	}
	l, client, server := newPair(t, Options{})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l.applyAll(t)
			states := l.states(t)
			sender := map[traffic.Direction]int{traffic.Up: 0, traffic.Down: 1}[c.direction]
			m := startMixture(t, client, server, traffic.Options{Direction: c.direction, Duration: 3 * time.Second, Verify: true})
			m.at(500 * time.Millisecond)
			before := byEnds(l.awaitSubflows(t, 0, mixtureSubflows))
			require.NoError(t, c.set(l, l.Nodes[c.node], false))
			l.setUp(t, states, c.node, "green", false)
			m.at(1200 * time.Millisecond)
			l.sentIn(t, sender, 500*time.Millisecond).expectShares(t, "while green is down", map[string]float64{"blue": .5, "red": .5})
			require.NoError(t, c.set(l, l.Nodes[c.node], true))
			l.setUp(t, states, c.node, "green", true)
			l.answerProbes(t, "green")
			m.at(2300 * time.Millisecond)
			l.sentIn(t, sender, 600*time.Millisecond).expectShares(t, "after green's return", evenShares)
			after := byEnds(living(l.flows(t, 0)))
			m.wait(t)
			if !maps.Equal(before, after) {
				t.Errorf("the subflows were%s\nand are%s", describeEnds(before), describeEnds(after))
			}
		})
	}
}

func TestConnectionsThatBeginWhileAPathIsDownUseItOnceItIsBack(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name string
		node int // whose NIC is down
	}{
		{"down at the initiator", 0},
		{"down at the responder", 1},
	}
	l, client, server := newPair(t, Options{})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			states := l.states(t)
			require.NoError(t, l.setCarrier(l.Nodes[c.node], false))
			l.setUp(t, states, c.node, "green", false)
			m := startMixture(t, client, server, traffic.Options{Direction: traffic.Up, Duration: 4500 * time.Millisecond, Verify: true})
			m.at(700 * time.Millisecond)
			l.sentIn(t, 0, 500*time.Millisecond).expectShares(t, "while green is down", map[string]float64{"blue": .5, "red": .5})
			require.NoError(t, l.setCarrier(l.Nodes[c.node], true))
			l.setUp(t, states, c.node, "green", true)
			l.answerProbes(t, "green")
			m.at(3 * time.Second)
			l.sentIn(t, 0, 1200*time.Millisecond).expectShares(t, "after green's return", evenShares)
			m.wait(t)
		})
	}
}

// answerProbes says until the test ends what the agents' probes would of a path that works:
// on a busy machine a flow may have found it silent, or find it so as it comes back.
func (l *lab) answerProbes(t *testing.T, path string) {
	t.Helper()
	ctx, ticker := t.Context(), time.NewTicker(20*time.Millisecond)
	var running sync.WaitGroup
	running.Go(func() {
		for ; ctx.Err() == nil; <-ticker.C {
			for i, d := range l.datapaths {
				d.NoteAnswer(l.Nodes[1-i].NodeName(), path)
			}
		}
	})
	t.Cleanup(running.Wait)
}

func (l *lab) setCarrier(node *network.Node, up bool) error { return l.SetCarrier(node, "green", up) }

func (l *lab) setNIC(node *network.Node, up bool) error { return l.SetNIC(node, "green", up) }

func TestANICIsRemovedAndAdded(t *testing.T) {
	t.Parallel()
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	m := startMixture(t, client, server, traffic.Options{Duration: untilEnded, Verify: true})
	m.at(500 * time.Millisecond)
	l.awaitSubflows(t, 0, mixtureSubflows)
	l.removeNIC(t, l.Nodes[0], "green")
	states := l.statesWithout(t, 0, "green")
	l.setUp(t, states, 0, "green", false)
	if counts := pathCounts(living(l.flows(t, 0))); !maps.Equal(counts, map[string]int{"blue": 4, "red": 4}) {
		t.Errorf("without green, the subflows by path are %v", counts)
	}
	expectLinks(t, l.datapaths[0], 2)
	m.at(1200 * time.Millisecond)
	l.addNIC(t, l.Nodes[0], "green", 1)
	l.applyAll(t)
	expectLinks(t, l.datapaths[0], 3)
	later := start(t, client, server, 4, traffic.Options{Connections: 3, Duration: untilEnded})
	later.at(300 * time.Millisecond)
	if sent := l.sentIn(t, 0, 400*time.Millisecond); sent.share("green") < 0.15 {
		t.Errorf("the new NIC carried little: %v", sent)
	}
	later.end(t)
	m.end(t)
}

// statesWithout are the states while a node has no NIC on a path.
func (l *lab) statesWithout(t *testing.T, node int, path string) []State {
	t.Helper()
	all := l.Spec.Paths
	defer func() { l.Spec.Paths = all }()
	l.Spec.Paths = remove(all, path)
	states := l.states(t)
	l.Spec.Paths = all
	for i := range states {
		if i != node {
			index, err := l.Nodes[i].Index(path)
			require.NoError(t, err)
			states[i].Paths = append(states[i].Paths, Path{Name: path, Interface: index, Up: true})
		}
	}
	return states
}

func remove(from []string, what string) (rest []string) {
	for _, s := range from {
		if s != what {
			rest = append(rest, s)
		}
	}
	return rest
}

func (l *lab) removeNIC(t *testing.T, node *network.Node, name string) {
	t.Helper()
	handle, err := node.Handle()
	require.NoError(t, err)
	nic, err := handle.LinkByName(name)
	require.NoError(t, err)
	require.NoError(t, handle.LinkDel(nic))
}

// addNIC plugs a new NIC into the path's bridge, with the addresses of the old one.
func (l *lab) addNIC(t *testing.T, node *network.Node, name string, path int) {
	t.Helper()
	require.NoError(t, network.Connect(node.Namespace, name, l.Fabric, "new."+name, network.Options{
		Mbit:       l.Spec.LinkMbit,
		AddressesA: []string{node.Address(path, 4) + "/24", node.Address(path, 6) + "/64"},
	}))
	handle, err := l.Fabric.Handle()
	require.NoError(t, err)
	port, err := handle.LinkByName("new." + name)
	require.NoError(t, err)
	bridge, err := handle.LinkByName(name)
	require.NoError(t, err)
	require.NoError(t, handle.LinkSetMaster(port, bridge))
}

func TestAPathIsRemovedFromTheStateAndAdded(t *testing.T) {
	t.Parallel()
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	states := l.states(t)
	m := startMixture(t, client, server, traffic.Options{Duration: untilEnded})
	m.at(500 * time.Millisecond)
	l.awaitSubflows(t, 0, mixtureSubflows)
	l.apply(t, 0, without(states[0], "green"))
	if counts := pathCounts(living(l.flows(t, 0))); !maps.Equal(counts, map[string]int{"blue": 4, "red": 4}) {
		t.Errorf("the subflows by path are %v", counts)
	}
	l.expectAttached(t, 0, "green", 0)
	m.at(900 * time.Millisecond)
	if sent := l.sentIn(t, 0, 300*time.Millisecond); sent.share("green") > 0.05 || sent.share("red") < 0.2 {
		t.Errorf("without green, the NICs sent %v", sent)
	}
	l.apply(t, 0, states[0])
	later := start(t, client, server, 4, traffic.Options{Duration: untilEnded})
	if counts := pathCounts(l.awaitSubflows(t, 0, 8+3)); !maps.Equal(counts, map[string]int{"blue": 5, "green": 1, "red": 5}) {
		t.Errorf("after the path's return the subflows by path are %v", counts)
	}
	later.end(t)
	m.end(t)
}

// The paths' NICs are VLANs' interfaces on two physical NICs, which have programs
// too: a tagged packet is the VLAN's business alone.
func TestPathsAreVLANs(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	serve(t, server, 4)
	announce(t, client, server, 4, 3)
	states := l.states(t)
	for i, node := range l.Nodes {
		for p := range states[i].Paths {
			if path := &states[i].Paths[p]; path.Name != "blue" {
				states[i].Uplinks = append(states[i].Uplinks, path.Interface)
				path.Interface = addVLAN(t, node, path.Name)
			}
		}
	}
	for i, state := range states {
		l.apply(t, i, state)
	}
	var result *traffic.Result
	sent := l.sent(t, 0, func() {
		result = transfer(t, client, server, 4, traffic.Options{Duration: time.Second})
	})
	sent.expectShares(t, "the physical NICs", evenShares)
	if result.Subflows != 3 {
		t.Errorf("%d subflows", result.Subflows)
	}
}

// addVLAN moves the NIC's addresses to an interface for its VLAN 10.
func addVLAN(t *testing.T, node *network.Node, name string) int {
	t.Helper()
	handle, err := node.Handle()
	require.NoError(t, err)
	nic, err := handle.LinkByName(name)
	require.NoError(t, err)
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.ParentIndex = name+".10", nic.Attrs().Index
	if err := handle.LinkAdd(&netlink.Vlan{LinkAttrs: attributes, VlanId: 10}); err != nil {
		skipWithoutVLAN(t, err)
	}
	addresses, err := handle.AddrList(nic, netlink.FAMILY_ALL)
	require.NoError(t, err)
	for _, address := range addresses {
		if address.IP.IsLinkLocalUnicast() {
			continue
		}
		require.NoError(t, handle.AddrDel(nic, &address))
		require.NoError(t, node.AddAddress(attributes.Name, address.IPNet.String()))
	}
	require.NoError(t, node.SetUp(attributes.Name))
	index, err := node.Index(attributes.Name)
	require.NoError(t, err)
	return index
}
