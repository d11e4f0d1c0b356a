// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
)

// lasted is what is known of the pod's connections to its peer.
func (n *node) lasted(t *testing.T) uplink.ToUplinkLasting {
	t.Helper()
	return *lookup[uplink.ToUplinkLasting](t, n.maps.Lasting, lastingKey)
}

var lastingKey = uplink.ToUplinkLastingKey{Endpoint: thePod, Peer: thePeer}

// setSlow says until which tick no connections begin on paths.
func (n *node) setSlow(t *testing.T, key uplink.ToUplinkLastingKey, until map[int]uint32) {
	t.Helper()
	var value uplink.ToUplinkLasting
	for path, tick := range until {
		value.Until[path] = tick
	}
	put(t, n.maps.Lasting, key, value)
}

// begunOn counts where so many connections begin.
func (n *node) begunOn(t *testing.T, e ends, count int) (begun [paths]int) {
	t.Helper()
	for i := range count {
		s := e.port(uint16(20000 + i)).syn(capable(1))
		n.egress(t, blue, s.frame())
		begun[n.mustFlow(t, s).Path]++
	}
	return begun
}

const minutes = 1 << 18 // ticks

func TestConnectionsDoNotBeginOnASlowPath(t *testing.T) {
	n := newNode(t)
	now := tick(t)
	for name, test := range map[string]struct {
		key   uplink.ToUplinkLastingKey
		until map[int]uint32
		up    uint8
		begun [paths]int
	}{
		"one is slow":            {lastingKey, map[int]uint32{green: now + minutes}, allPaths, [paths]int{6, 0, 6}},
		"two are":                {lastingKey, map[int]uint32{green: now + minutes, red: now + minutes}, allPaths, [paths]int{12, 0, 0}},
		"all are":                {lastingKey, map[int]uint32{blue: now + minutes, green: now + minutes, red: now + minutes}, allPaths, [paths]int{4, 4, 4}},
		"the others are down":    {lastingKey, map[int]uint32{green: now + minutes}, 1 << green, [paths]int{0, 12, 0}},
		"it is for another peer": {uplink.ToUplinkLastingKey{Endpoint: thePod, Peer: thePeer + 1}, map[int]uint32{green: now + minutes}, allPaths, [paths]int{4, 4, 4}},
		"it is for another pod":  {uplink.ToUplinkLastingKey{Endpoint: thePod + 1, Peer: thePeer}, map[int]uint32{green: now + minutes}, allPaths, [paths]int{4, 4, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, _ int, e ends) {
				n.reset(t)
				n.setPeer(t, test.up)
				n.setSlow(t, test.key, test.until)
				require.Equal(t, test.begun, n.begunOn(t, e, 12))
			})
		})
	}
}

func TestOneConnectionTriesASlowPathWhenItIsDue(t *testing.T) {
	n := newNode(t)
	n.setSlow(t, lastingKey, map[int]uint32{green: tick(t) - 50})
	require.Equal(t, 1, n.begunOn(t, endsOf[4], 10)[green])
	until := n.lasted(t).Until[green]
	require.InDelta(t, tick(t)+uplink.TryAgain, until, 500, "half a second, as machines are busy")
	n.setSlow(t, lastingKey, map[int]uint32{green: 0})
	require.NotZero(t, n.begunOn(t, endsOf[6], 10)[green], "it is no longer slow")
}

func TestSubflowsJoinOnASlowPath(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], blue)
	n.setSlow(t, lastingKey, map[int]uint32{green: tick(t) + minutes, red: tick(t) + minutes})
	require.ElementsMatch(t, []int{green, red}, []int{n.joinOn(t, e, 4001), n.joinOn(t, e, 4002)})
}

// closes ends a connection, the pod first or its peer.
func (n *node) closes(t *testing.T, e ends, path int, first bool, flags uint8) {
	t.Helper()
	out := e.out().with(func(s *segment) { s.flags = flags })
	if first {
		n.goesBy(t, out)
	}
	n.ingress(t, path, out.flip().frame())
	if !first {
		n.goesBy(t, out)
	}
}

func TestItIsCountedHowLongConnectionsLast(t *testing.T) {
	n := newNode(t)
	for name, first := range map[string]bool{"the pod closes first": true, "its peer closes first": false} {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, _ int, e ends) {
				n.reset(t)
				began := time.Now()
				e = n.begin(t, e, green)
				time.Sleep(pause)
				n.closes(t, e, green, first, fin)
				least, most := pause>>uplink.LastingTick, time.Since(began)>>uplink.LastingTick+2
				known := n.lasted(t)
				require.Equal(t, []uint32{1, 1, 1}, []uint32{known.Begun[green], known.Ended[green], known.Timed[green]})
				require.GreaterOrEqual(t, known.Total[green], uint64(least))
				require.LessOrEqual(t, known.Total[green], uint64(most))
				require.InDelta(t, math.Log2(float64(known.Total[green])), float64(known.Times[green])/(1<<uplink.LastingUnit), 0.15)
				require.Equal(t, known.Times[green]*known.Times[green], known.Squares[green])
				require.Equal(t, known.Total[green]*known.Total[green], known.TotalSquares[green])
				n.closes(t, e, green, first, fin)
				require.EqualValues(t, 1, n.lasted(t).Ended[green], "it ends once")
			})
		})
	}
}

// One that lasts for hours would be all of the sum.
func TestOfALongConnectionSomeSecondsCountInTheSum(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], green)
	flow := n.mustFlow(t, e.out())
	flow.AvoidedAt -= uint32(100 * time.Second >> uplink.LastingTick &^ 1)
	put(t, n.maps.Flows, flowKey(e.out()), *flow)
	n.closes(t, e, green, true, fin)
	known := n.lasted(t)
	require.EqualValues(t, uplink.LongestLasting, known.Total[green])
	require.EqualValues(t, uplink.LongestLasting*uplink.LongestLasting, known.TotalSquares[green])
	require.InDelta(t, math.Log2(float64(100*time.Second>>uplink.LastingTick)), float64(known.Times[green])/(1<<uplink.LastingUnit), 0.15)
}

func TestOfAResetItIsNotKnownHowLongTheConnectionWouldHaveLasted(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], red)
	n.closes(t, e, red, true, rst)
	known := n.lasted(t)
	require.Equal(t, []uint32{1, 1, 0}, []uint32{known.Begun[red], known.Ended[red], known.Timed[red]})
}

func TestOnlyConnectionsThatThisNodePlacedAreCounted(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], blue)
	n.joinOn(t, e, 4001)
	n.isCalled(t, endsOf[6], green)
	n.egress(t, blue, endsOf[4].port(4002).syn(capable(1)).frame()) // nobody answers
	known, sum := n.lasted(t), uint32(0)
	for _, begun := range known.Begun {
		sum += begun
	}
	require.EqualValues(t, 1, sum)
	n.closes(t, e.port(4001), int(n.mustFlow(t, e.port(4001).out()).Path), true, fin)
	n.closes(t, endsOf[6], green, true, fin)
	require.Zero(t, n.lasted(t).Ended)
}

// What comes after that says nothing of the path.
func TestAConnectionThatLeavesItsPathLastedUntilThen(t *testing.T) {
	n := newSilentNode(t)
	e := n.begin(t, endsOf[4], green)
	n.goesBy(t, e.sends(0))
	n.ingress(t, green, e.hears(100, 0).frame())
	n.avoidsGreen(t, e, 100)
	known := n.lasted(t)
	require.Equal(t, []uint32{1, 0, 1}, []uint32{known.Begun[green], known.Ended[green], known.Timed[green]})
	require.GreaterOrEqual(t, float64(known.Times[green])/(1<<uplink.LastingUnit), math.Log2(float64(quiet>>uplink.LastingTick))-0.3)
	n.closes(t, e, green, true, fin)
	after := n.lasted(t)
	require.Equal(t, []uint32{1, 1, 1}, []uint32{after.Begun[green], after.Ended[green], after.Timed[green]})
}
