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

// beginBy has so many connections begin, and tells how many have their place on each path, and by which they begin.
func (n *node) beginBy(t *testing.T, e ends, count int) (places, by [paths]int) {
	t.Helper()
	for i := range count {
		s := e.port(uint16(20000 + i)).syn(capable(1))
		by[n.goesBy(t, s)]++
		places[n.mustFlow(t, s).Path]++
	}
	return places, by
}

func TestConnectionsBeginByOthersThanADistantPath(t *testing.T) {
	n := newNode(t)
	inTurn := [paths]int{20, 20, 20}
	for name, test := range map[string]struct {
		distant     []int
		slow        map[int]uint32
		up          uint8
		places, not [paths]int // not: 1 for each path by which none begins
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
				places, by := n.beginBy(t, e, 60)
				require.Equal(t, test.places, places)
				for path, not := range test.not {
					require.Equal(t, not == 1, by[path] == 0, "%v", by)
				}
			})
		})
	}
}

func TestAConnectionThatBeganAtRestHasItsPlaceAndItsToken(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, _ int, e ends) {
		n.reset(t)
		n.setDistant(t, green)
		e = n.begin(t, e, green)
		require.NotEqual(t, green, n.goesBy(t, e.asksAgain()))
		require.Equal(t, []int{0, 1, 0}, n.places(t, n.mustFlow(t, e.out()).Token))
		require.ElementsMatch(t, []int{blue, red}, []int{n.joinTo(t, e, 4001), n.joinTo(t, e, 4002)})
		n.hearsInTheNextSlice(t, e, blue, func(f *uplink.ToUplinkFlow) { f.CountedReceived = f.Received - uplink.RestingBytes })
		n.noSliceEnds(t, e)
		n.requireGoesBy(t, green, e.asksAgain(), "as it moves much")
	})
}

// The other way would lead back to where it is lost.
func TestASYNThatIsRepeatedWhileItsConnectionRestsTakesTheNextPath(t *testing.T) {
	n := newNode(t)
	n.setDistant(t, green)
	e := endsOf[4]
	for ; n.mustBegin(t, e) != green; e = e.port(e.pod.Port() + 1) {
	}
	first := n.mustFlow(t, e.out()).Last
	time.Sleep(quiet)
	second := n.goesBy(t, e.syn(capable(1)))
	require.NotEqual(t, int(first), second)
	flow := n.mustFlow(t, e.out())
	require.EqualValues(t, second, flow.Path)
	require.Zero(t, flow.Subtype&uplink.TogetherBits)
}

// mustBegin has a pod say SYN, and tells whose place the connection has.
func (n *node) mustBegin(t *testing.T, e ends) int {
	t.Helper()
	n.goesBy(t, e.syn(capable(1)))
	return int(n.mustFlow(t, e.out()).Path)
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
					places := n.places(t, n.mustFlow(t, e.out()).Token)
					n.restsElsewhere(t, e)
					require.Equal(t, places, n.places(t, n.mustFlow(t, e.out()).Token), "its place stays")
					if moves == nil {
						n.setDistant(t)
						require.Equal(t, green, n.inTheNextSlice(t, e))
						return
					}
					n.hearsInTheNextSlice(t, e, blue, moves)
					n.noSliceEnds(t, e)
					require.Equal(t, green, n.leavesBy(t, e.asksAgain()))
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

func TestAFlowWhoseRestingPathFallsSilentTakesItsOwn(t *testing.T) {
	n := newSilentNode(t)
	e := n.begin(t, endsOf[4], green)
	for path := range paths {
		n.setAnswered(t, path, tick(t))
	}
	n.setDistant(t, green)
	path := n.inTheNextSlice(t, e)
	require.NotEqual(t, green, path)
	time.Sleep(quiet)
	n.requireGoesBy(t, green, e.asksAgain(), "what is repeated")
	require.Zero(t, n.mustFlow(t, e.out()).Subtype&uplink.TogetherBits)
	n.setAnswered(t, green, tick(t)+1)
	n.noSliceEnds(t, e)
	n.requireGoesBy(t, green, e.asksAgain(), "what comes after its own path has answered")
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
