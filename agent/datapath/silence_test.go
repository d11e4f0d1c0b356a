// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Nobody looks at paths here: no model says that one is down, and no probe runs.
func TestFlowsLeaveADeadPathWithoutTheAgent(t *testing.T) {
	t.Parallel()
	cases := []struct {
		name      string
		node      int // whose NIC fails
		fail      func(l *lab, node *network.Node, failed bool) error
		direction traffic.Direction
	}{
		{"everything is lost at the initiator, which sends", 0, blocked(), traffic.Up},
		{"everything is lost at the responder, which receives", 1, blocked(), traffic.Up},
		{"everything is lost at the sending responder", 1, blocked(), traffic.Down},
		{"everything is lost at the receiving initiator", 0, blocked(), traffic.Down},
		{"what the initiator sends is lost, and it sends the data", 0, blocked(network.FromNode), traffic.Up},
		{"what the initiator sends is lost, and it only receives", 0, blocked(network.FromNode), traffic.Down},
		{"the carrier is lost at the sending initiator", 0, withoutCarrier, traffic.Up},
		{"the carrier is lost at the receiving responder", 1, withoutCarrier, traffic.Up},
	}
	l, client, server := newPair(t, Options{})
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l.applyAll(t)
			sender := map[traffic.Direction]int{traffic.Up: 0, traffic.Down: 1}[c.direction]
			m := startMixture(t, client, server, traffic.Options{Direction: c.direction, Duration: 7500 * time.Millisecond, Verify: true})
			m.at(500 * time.Millisecond)
			l.awaitSubflows(t, 0, mixtureSubflows)
			require.NoError(t, c.fail(l, l.Nodes[c.node], true))
			m.at(2 * time.Second)
			l.sentIn(t, sender, 500*time.Millisecond).expectShares(t, "while green is dead", map[string]float64{"blue": .5, "red": .5})
			require.NoError(t, c.fail(l, l.Nodes[c.node], false))
			m.at(6 * time.Second)
			l.sentIn(t, sender, time.Second).expectShares(t, "after green's return", evenShares)
			m.wait(t)
			// Connections with one subflow have no other to send on. TCP repeats after 200 ms
			// and a round trip at the latest.
			gap := m.many.wait(t).LongestGapMs
			t.Logf("the longest stop of one connection was %.0f ms", gap)
			require.Less(t, gap, 1000.0, "ms without a byte on a connection, of the 2000 for which green was dead")
		})
	}
}

func blocked(directions ...network.Direction) func(*lab, *network.Node, bool) error {
	return func(l *lab, node *network.Node, failed bool) error {
		return l.Block(node, "green", failed, directions...)
	}
}

func withoutCarrier(l *lab, node *network.Node, failed bool) error {
	return l.setCarrier(node, !failed)
}

func TestAnAnswerToAProbeIsToldToThePrograms(t *testing.T) {
	l, _, _ := newPair(t, Options{})
	l.applyAll(t)
	d := l.datapaths[0]
	before, err := tick()
	require.NoError(t, err)
	d.NoteAnswer(l.Nodes[1].NodeName(), "green")
	d.NoteAnswer(l.Nodes[1].NodeName(), "no such path")
	d.NoteAnswer("no such node", "green")
	var answers []uint32
	require.NoError(t, entries.Each(d.loaded.Value.maps().Answered, func(index, at *uint32) {
		if *at != 0 {
			answers = append(answers, *index%uplink.MaxPaths)
			require.GreaterOrEqual(t, *at, before)
		}
	}))
	require.Equal(t, []uint32{1}, answers, "green's number")
}

func TestHowLongAgoAPeerAnsweredIsKnown(t *testing.T) {
	l, _, _ := newPair(t, Options{})
	require.Negative(t, l.datapaths[0].Heard(l.Nodes[1].NodeName(), "green"), "before anything is loaded")
	l.applyAll(t)
	d, peer := l.datapaths[0], l.Nodes[1].NodeName()
	begun := time.Now()
	d.NoteAnswer(peer, "green")
	answered := func(ago time.Duration) {
		t.Helper()
		now, err := tick()
		require.NoError(t, err)
		require.NoError(t, d.loaded.Value.maps().Answered.Put(d.peers.entries[peer].number*uplink.MaxPaths+1, now-uint32(ago>>uplink.Tick)))
	}
	heard := d.Heard(peer, "green")
	require.GreaterOrEqual(t, heard, time.Duration(0))
	require.LessOrEqual(t, heard, time.Since(begun)+20*time.Millisecond, "the clock moves in steps")
	answered(3 * time.Second)
	require.InDelta(t, 3, d.Heard(peer, "green").Seconds(), 1)
	answered(30 * 24 * time.Hour) // the clock has gone round half
	require.Negative(t, d.Heard(peer, "green"))
	for _, unknown := range [][2]string{{peer, "blue"}, {peer, "no such path"}, {"no such node", "green"}} {
		require.Negative(t, d.Heard(unknown[0], unknown[1]), unknown)
	}
}
