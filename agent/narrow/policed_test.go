// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// policed has the slow path lose what is more than its rate, at once: its subflow stands still for 200 ms then,
// and the good one with it, for want of room in the send buffer.
var policed = network{
	apart: [2]float64{30 * mbit, 25 * mbit}, joined: [2]float64{95 * mbit, 40 * mbit}, rates: [2]float64{95 * mbit, 60 * mbit},
	rtts: [2]time.Duration{15 * time.Millisecond, time.Millisecond}, receiver: 4 << 20, fills: 0.25, stuck: 0.8,
	buffered: true, loses: [2]float64{0, 0.09},
}

func TestAConnectionThatAPolicedPathHoldsUpComesToShareTheGoodOne(t *testing.T) {
	s := simulate(policed)
	require.Equal(t, []order{share}, s.runs(time.Second))
	s.runs(time.Second)
	require.True(t, s.hasSettled(true))
	require.Equal(t, uint8(goodPath), s.path)
	require.True(t, s.plainly, "the next ones are told")
}

func TestAFullSendBufferIsNoReasonToGiveUpPathsThatCarryMuch(t *testing.T) {
	for name, change := range map[string]func(*network){
		"where none of them loses packets":                     func(n *network) { n.loses = [2]float64{} },
		"where they lose alike":                                func(n *network) { n.loses[goodPath] = n.loses[slowPath] },
		"where they carry as much as the good one alone":       func(n *network) { n.apart = [2]float64{60 * mbit, 40 * mbit} },
		"where the good one rarely waits for what others lost": func(n *network) { n.waitsNowAndThen = true },
	} {
		t.Run(name, func(t *testing.T) {
			of := policed
			change(&of)
			require.Empty(t, simulate(of).runs(20*time.Second))
		})
	}
}

// Where it is a window that is full, even a little less is enough: who has a small one stands still again and again.
func TestThePathThatIsSharedForAFullSendBufferMustGiveMore(t *testing.T) {
	of := policed
	of.joined[goodPath] = 54 * mbit
	s := simulate(of)
	require.Equal(t, []order{share, part}, s.runs(3*time.Second))
	require.True(t, s.hasSettled(false))
}

func TestOfSeveralPathsTheOneThatHasTheOthersStandStillIsGivenUp(t *testing.T) {
	stuck, moves := sight{full: true, stuck: true}, sight{full: true}
	for name, test := range map[string]struct {
		rate  float64
		lost  float64 // of what the third path's subflow moves
		sight sight
		is    bool
	}{
		"two that lose nothing promise more":           {110, 0.09, stuck, true},
		"they promise no more than all carry":          {230, 0.09, stuck, false},
		"it loses no more than the others":             {110, 0, stuck, false},
		"it loses, and nothing waits for what it lost": {110, 0.09, moves, false},
	} {
		t.Run(name, func(t *testing.T) {
			c, subflows := connectionOver(test.rate, seenPath{peak: 95}, seenPath{peak: 94}, seenPath{peak: 96})
			for range long {
				c.limits.add(test.sight)
			}
			for _, h := range c.subflows {
				h.bytes = 1e6
			}
			c.subflows[subflows[2].ends].lost = test.lost * 1e6
			next, is := c.toGiveUpSome(time.Unix(1000, 0), subflows)
			require.Equal(t, test.is, is)
			if is {
				require.Equal(t, uint8(0), next.path)
				require.Equal(t, uint8(1<<1), next.keeps)
				require.True(t, next.losses)
			}
		})
	}
}
