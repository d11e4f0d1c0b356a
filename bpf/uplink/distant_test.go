// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
)

// setDistant says which paths to the peer have a much longer round trip.
func (n *node) setDistant(t *testing.T, on ...int) {
	t.Helper()
	var health uplink.ToUplinkHealth
	for _, path := range on {
		health.Distant |= 1 << path
	}
	n.setHealth(t, health)
}

// beginBy has so many connections begin, and tells how many have had their turn on each path, and by which they begin.
func (n *node) beginBy(t *testing.T, e ends, count int) (turns, by [paths]int) {
	t.Helper()
	for i := range count {
		s := e.port(uint16(20000 + i)).syn(capable(1))
		path := n.goesBy(t, s)
		flow := n.mustFlow(t, s)
		require.EqualValues(t, path, flow.Path)
		by[path]++
		turns[turnOf(flow)]++
	}
	return turns, by
}

// turnOf tells on which path a flow has its turn, be it that it rests on another one.
func turnOf(flow *uplink.ToUplinkFlow) uint8 {
	if flow.Subtype&(uplink.Together|uplink.Noted) == uplink.Together {
		return flow.Subtype >> uplink.TogetherPath & (uplink.MaxPaths - 1)
	}
	return flow.Path
}

func TestConnectionsBeginByOthersThanADistantPath(t *testing.T) {
	n := newNode(t)
	inTurn := [paths]int{20, 20, 20}
	for name, test := range map[string]struct {
		distant    []int
		slow       map[int]uint32
		up         uint8
		turns, not [paths]int // not: 1 for each path by which none begins
	}{
		"one is distant":      {[]int{green}, nil, allPaths, inTurn, [paths]int{0, 1, 0}},
		"two are":             {[]int{green, red}, nil, allPaths, inTurn, [paths]int{0, 1, 1}},
		"none is":             {nil, nil, allPaths, inTurn, [paths]int{}},
		"all are":             {[]int{blue, green, red}, nil, allPaths, inTurn, [paths]int{}},
		"the others are down": {[]int{green}, nil, 1 << green, [paths]int{0, 60, 0}, [paths]int{1, 0, 1}},
		"another is slow":     {[]int{green}, map[int]uint32{red: tick(t) + minutes}, allPaths, [paths]int{30, 30, 0}, [paths]int{0, 1, 1}},
		"it is slow, too":     {[]int{green}, map[int]uint32{green: tick(t) + minutes}, allPaths, [paths]int{30, 0, 30}, [paths]int{0, 1, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, _ int, e ends) {
				n.reset(t)
				n.setPeer(t, test.up)
				n.setDistant(t, test.distant...)
				n.setSlow(t, lastingKey, test.slow)
				turns, by := n.beginBy(t, e, 60)
				require.Equal(t, test.turns, turns)
				for path, not := range test.not {
					require.Equal(t, not == 1, by[path] == 0, "%v", by)
				}
			})
		})
	}
}

// beginAtRest has a pod's connection begin whose turn it is on green, which is distant, and tells where it rests.
func (n *node) beginAtRest(t *testing.T, e ends) (begun ends, path int) {
	t.Helper()
	n.setDistant(t, green)
	for begun = e.port(20000); ; begun = begun.port(begun.pod.Port() + 1) {
		path = n.goesBy(t, begun.syn(capable(1)))
		if path != green && turnOf(n.mustFlow(t, begun.out())) == green {
			break
		}
	}
	n.isAnswered(t, begun, capableWithKey(key))
	n.requireGoesBy(t, path, begun.asksAgain(), "its first data")
	return begun, path
}

// hearsMuch has so much come in for a flow on a path within a slice of time that it is not to rest.
func (n *node) hearsMuch(t *testing.T, e ends, path int) {
	t.Helper()
	n.hearsInTheNextSlice(t, e, path, func(f *uplink.ToUplinkFlow) { f.CountedReceived = f.Received - uplink.RestingBytes })
}

// movesMuch has it do so for as long as the test goes on.
func (n *node) movesMuch(t *testing.T, e ends, path int) {
	t.Helper()
	n.hearsMuch(t, e, path)
	n.noSliceEnds(t, e)
}

// counts are how many subflows a connection has on each path.
func counts(on ...int) []int {
	all := make([]int, paths)
	for _, path := range on {
		all[path]++
	}
	return all
}

func TestAConnectionThatBeganAtRestTakesItsTurnWhenItMovesMuch(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, _ int, e ends) {
		n.reset(t)
		e, path := n.beginAtRest(t, e)
		token := n.mustFlow(t, e.out()).Token
		require.Equal(t, counts(path), n.places(t, token))
		n.hearsMuch(t, e, path)
		n.requireGoesBy(t, green, e.asksAgain(), "the next packet, in that slice of time")
		require.Equal(t, counts(green), n.places(t, token))
		n.closes(t, e, green, true, rst)
		require.Equal(t, counts(), n.places(t, token))
	})
}

// It finds at once how long the path is, where the first one would have taken it for short.
func TestASubflowThatJoinsTakesTheTurnOfAFirstOneThatRests(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, _ int, e ends) {
		n.reset(t)
		e, path := n.beginAtRest(t, e)
		token := n.mustFlow(t, e.out()).Token
		require.ElementsMatch(t, []int{green, blue + red - path}, []int{n.joinTo(t, e, 4001), n.joinTo(t, e, 4002)})
		n.movesMuch(t, e, path)
		require.Equal(t, path, n.leavesBy(t, e.asksAgain()))
		require.Equal(t, counts(blue, green, red), n.places(t, token))
		require.Zero(t, n.mustFlow(t, e.out()).Subtype&uplink.TogetherBits, "it rests no more")
		n.setDistant(t)
		require.Equal(t, path, n.inTheNextSlice(t, e), "that is its own path now")
	})
}

func TestSubflowsThatAreToShareAPathStayWhereTheFirstOneRests(t *testing.T) {
	n := newNode(t)
	n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Flags: uplink.PreferenceSet | uplink.PreferenceSame})
	e, path := n.beginAtRest(t, endsOf[4])
	require.Equal(t, path, n.joinTo(t, e, 4001))
	n.movesMuch(t, e, path)
	require.Equal(t, path, n.leavesBy(t, e.asksAgain()))
	require.Equal(t, counts(path, path), n.places(t, n.mustFlow(t, e.out()).Token))
}

func TestAFlowThatRestsWaitsForItsTurnWhileThatPathIsDown(t *testing.T) {
	n := newNode(t)
	e, path := n.beginAtRest(t, endsOf[4])
	n.setPeer(t, 1<<blue|1<<red)
	n.movesMuch(t, e, path)
	require.Equal(t, path, n.leavesBy(t, e.asksAgain()))
	require.Equal(t, counts(path), n.places(t, n.mustFlow(t, e.out()).Token))
	n.setPeer(t, allPaths)
	n.movesMuch(t, e, path)
	require.Equal(t, green, n.leavesBy(t, e.asksAgain()))
}

func TestAHotFlowTakesItsTurnAlsoOnANodeOnWhichNoneSharePaths(t *testing.T) {
	n := newNode(t)
	n.load(t, 131072, sharesNothing(t))
	n.reset(t)
	e, _ := n.beginAtRest(t, endsOf[4])
	resting, sequence := *n.mustFlow(t, e.out()), uint32(100)
	connection := uplink.ToUplinkConnectionKey{Endpoint: thePod, Token: resting.Token}
	n.inOneStep(t, e.out(), func() {
		n.putFlow(t, e.out(), resting)
		put(t, n.maps.Connections, connection, uplink.ToUplinkConnection{Subflows: 1 << (resting.Path * 8)})
		sequence = n.heat(t, e, sequence)
	}, func() {
		flow, hot := n.mustFlow(t, e.out()), n.hotEntry(t, e.out())
		flow.Subtype |= uplink.SendsMuch
		put(t, n.maps.Flows, flowKey(e.out()), *flow)
		hot.State |= uplink.SendsMuch << 16
		put(t, n.maps.HotFlows, hot.index, hot.ToUplinkHotFlow)
		n.egress(t, blue, e.sends(sequence).frame())
	})
	require.EqualValues(t, green, n.mustFlow(t, e.out()).Path)
}

// Else a path that flows have left to rest would look as if they lasted there for ever, and be slow.
func TestAFlowThatMovesToRestCountsAsOneThatBeganThere(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], green)
	before := n.lasted(t)
	path := n.restsElsewhere(t, e)
	after := n.lasted(t)
	require.Equal(t, before.Ended[green]+1, after.Ended[green])
	require.Equal(t, before.Begun[path]+1, after.Begun[path])
	n.closes(t, e, path, true, fin)
	ended := n.lasted(t)
	require.Equal(t, after.Ended[path]+1, ended.Ended[path])
	require.Equal(t, before.Timed, ended.Timed, "how long it lasted tells of no path")
}

// The other way would lead back to where it is lost.
func TestASYNThatIsRepeatedWhileItsConnectionRestsTakesTheNextPath(t *testing.T) {
	n := newNode(t)
	n.setDistant(t, green)
	e := endsOf[4]
	for ; n.turnOfNew(t, e) != green; e = e.port(e.pod.Port() + 1) {
	}
	first := n.mustFlow(t, e.out()).Last
	time.Sleep(quiet)
	second := n.goesBy(t, e.syn(capable(1)))
	require.NotEqual(t, int(first), second)
	flow := n.mustFlow(t, e.out())
	require.EqualValues(t, second, flow.Path)
	require.Zero(t, flow.Subtype&uplink.TogetherBits)
}

// turnOfNew has a pod say SYN, and tells on which path the connection has its turn.
func (n *node) turnOfNew(t *testing.T, e ends) int {
	t.Helper()
	n.goesBy(t, e.syn(capable(1)))
	return int(turnOf(n.mustFlow(t, e.out())))
}

// inTheNextSlice has the pod send once more in the next slice of time, and tells by which path.
func (n *node) inTheNextSlice(t *testing.T, e ends) int {
	t.Helper()
	n.nextSlice(t, e)
	return n.leavesBy(t, e.asksAgain())
}

// asksAgain is what a pod sends that moves little.
func (e ends) asksAgain() segment {
	return e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 100) })
}

func TestASubflowStaysOnADistantPath(t *testing.T) {
	n := newNode(t)
	for name, prepare := range map[string]func(*testing.T, ends){
		"that has sent much of late": func(t *testing.T, e ends) {
			n.changeFlow(t, e, func(f *uplink.ToUplinkFlow) { f.CountedSent = f.Sent - 1<<24 })
		},
		"that has received much of late": func(t *testing.T, e ends) {
			n.changeFlow(t, e, func(f *uplink.ToUplinkFlow) {
				f.Received = 1 << 25
				f.CountedReceived = f.Received - 1<<24
			})
		},
		"that is ending": func(t *testing.T, e ends) {
			n.changeFlow(t, e, func(f *uplink.ToUplinkFlow) { f.Ended = uplink.EndedIn })
		},
		"whose others are backups": func(t *testing.T, _ ends) {
			n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Backup: 1<<blue | 1<<red, Flags: uplink.PreferenceSet})
		},
		"whose others are down":         func(t *testing.T, _ ends) { n.setPeer(t, 1<<green) },
		"whose others are distant, too": func(t *testing.T, _ ends) { n.setDistant(t, blue, green, red) },
	} {
		t.Run(name, func(t *testing.T) {
			n.reset(t)
			e := n.begin(t, endsOf[4], green)
			n.setDistant(t, green)
			prepare(t, e)
			require.Equal(t, green, n.inTheNextSlice(t, e))
		})
	}
}

func TestAFirstSubflowRestsElsewhereWhileItMovesLittle(t *testing.T) {
	n := newNode(t)
	for name, moves := range map[string]func(*uplink.ToUplinkFlow){
		"until it sends much":               func(f *uplink.ToUplinkFlow) { f.CountedSent = f.Sent - uplink.RestingBytes },
		"until it receives much":            func(f *uplink.ToUplinkFlow) { f.CountedReceived = f.Received - uplink.RestingBytes },
		"until its path is distant no more": nil,
	} {
		for kind, others := range map[string]int{"the only one": 0, "one of two": 1} {
			t.Run(kind+" "+name, func(t *testing.T) {
				forEachVersion(t, func(t *testing.T, _ int, e ends) {
					n.reset(t)
					e = n.begin(t, e, green)
					for i := range others {
						n.joinTo(t, e, uint16(4001+i))
					}
					token := n.mustFlow(t, e.out()).Token
					places := n.places(t, token)
					path := n.restsElsewhere(t, e)
					require.Equal(t, places[path]+1, n.places(t, token)[path], "its place goes with it")
					require.Zero(t, n.places(t, token)[green])
					if moves == nil {
						n.setDistant(t)
						require.Equal(t, green, n.inTheNextSlice(t, e))
					} else {
						n.hearsInTheNextSlice(t, e, blue, moves)
						n.noSliceEnds(t, e)
						require.Equal(t, green, n.leavesBy(t, e.asksAgain()))
					}
					require.Equal(t, places, n.places(t, token), "and comes back with it")
				})
			})
		}
	}
}

// restsElsewhere has green become distant, where the pod has a connection, and tells by which path that rests.
func (n *node) restsElsewhere(t *testing.T, e ends) int {
	t.Helper()
	n.setDistant(t, green)
	path := n.inTheNextSlice(t, e)
	require.NotEqual(t, green, path)
	n.hearsInTheNextSlice(t, e, path, func(f *uplink.ToUplinkFlow) { f.CountedSent = f.Sent - uplink.RestingBytes/2 })
	require.Equal(t, path, n.leavesBy(t, e.asksAgain()), "a little more makes no difference")
	require.Equal(t, path, n.inTheNextSlice(t, e))
	return path
}

func TestFlowsRestAlsoOnANodeOnWhichNoneSharePaths(t *testing.T) {
	n := newNode(t)
	n.load(t, 131072, sharesNothing(t))
	n.reset(t)
	n.restsElsewhere(t, n.begin(t, endsOf[4], green))
}

func TestAFlowRestsByAnotherPathWhereThatBecomesDistant(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], green)
	path := n.restsElsewhere(t, e)
	n.setDistant(t, green, path)
	require.Equal(t, blue+red-path, n.inTheNextSlice(t, e))
}

func TestAFlowRestsByNoPathThatNobodyHeardOfLate(t *testing.T) {
	n := newSilentNode(t)
	e := n.begin(t, endsOf[4], green)
	n.setDistant(t, green)
	require.Equal(t, green, n.inTheNextSlice(t, e))
	n.setAnswered(t, blue, tick(t)-2000)
	n.setAnswered(t, red, tick(t)-500)
	require.Equal(t, red, n.inTheNextSlice(t, e))
}

func TestAFlowWhoseRestingPathFallsSilentTakesAnother(t *testing.T) {
	n := newSilentNode(t)
	e := n.begin(t, endsOf[4], green)
	for path := range paths {
		n.setAnswered(t, path, tick(t))
	}
	n.setDistant(t, green)
	path := n.inTheNextSlice(t, e)
	require.NotEqual(t, green, path)
	time.Sleep(quiet)
	other := n.leavesBy(t, e.asksAgain())
	require.NotEqual(t, path, other, "what is repeated")
	n.noSliceEnds(t, e)
	require.Equal(t, other, n.leavesBy(t, e.asksAgain()))
	n.setAnswered(t, path, tick(t)+1)
	require.Equal(t, path, n.leavesBy(t, e.asksAgain()), "what comes after that has answered")
}

// noSliceEnds has the flow be counted for as long as the test goes on: what it moves in so little time tells nothing.
func (n *node) noSliceEnds(t *testing.T, e ends) {
	t.Helper()
	n.changeFlow(t, e, func(f *uplink.ToUplinkFlow) { f.Counted += 1000 })
}

// hearsInTheNextSlice has something come in for the flow in the next slice of time.
func (n *node) hearsInTheNextSlice(t *testing.T, e ends, path int, change func(*uplink.ToUplinkFlow)) {
	t.Helper()
	received := n.mustFlow(t, e.out()).Received + 1000
	n.changeFlow(t, e, func(f *uplink.ToUplinkFlow) {
		f.Counted--
		f.AdvancedJiffy--
		change(f)
	})
	n.ingress(t, path, e.flip().out().with(func(s *segment) {
		s.sequence, s.answer, s.payload = received, 1100, make([]byte, 100)
	}).frame())
	require.Equal(t, received, n.mustFlow(t, e.out()).Received)
}

func TestWhatTheAgentSaysOfASubflowGoesBeforeADistance(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], green)
	n.joinTo(t, e, 4001)
	n.setDistant(t, green)
	put(t, n.maps.BusyFlows, flowKey(e.out()), uplink.ToUplinkBusyFlow{Together: sharing(green)})
	n.changeFlow(t, e, func(f *uplink.ToUplinkFlow) { f.Subtype |= uplink.Noted | sharing(green) })
	require.Equal(t, green, n.inTheNextSlice(t, e))
}

func (n *node) changeFlow(t *testing.T, e ends, change func(*uplink.ToUplinkFlow)) {
	t.Helper()
	flow := n.mustFlow(t, e.out())
	change(flow)
	n.putFlow(t, e.out(), *flow)
}

func TestFurtherSubflowsStayOnADistantPath(t *testing.T) {
	n := newNode(t)
	e := n.begin(t, endsOf[4], blue)
	on := map[int]ends{n.joinTo(t, e, 4001): e.port(4001), n.joinTo(t, e, 4002): e.port(4002)}
	n.setDistant(t, green)
	require.Equal(t, green, n.inTheNextSlice(t, on[green]))
}

func TestSubflowsJoinOnADistantPath(t *testing.T) {
	n := newNode(t)
	n.setDistant(t, green)
	e := n.begin(t, endsOf[4], blue)
	require.ElementsMatch(t, []int{green, red}, []int{n.joinTo(t, e, 4001), n.joinTo(t, e, 4002)})
}

func TestAConnectionThatIsAskedForStaysWhereItsPeerHasIt(t *testing.T) {
	n := newNode(t)
	e := n.isCalled(t, endsOf[4], green)
	n.setDistant(t, green)
	require.Equal(t, green, n.inTheNextSlice(t, e))
}

// joinTo has one more subflow join a connection, and tells on which path.
func (n *node) joinTo(t *testing.T, e ends, port uint16) int {
	t.Helper()
	s := e.port(port).syn(join(n.mustFlow(t, e.out()).Token))
	n.egress(t, blue, s.frame())
	n.isAnswered(t, e.port(port), joinAnswer())
	return int(n.mustFlow(t, s).Path)
}
