// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

const (
	// quiet is longer than a flow waits for its first answer, or a path may be silent.
	quiet = 100 * time.Millisecond
	// pause is longer than new data may not come.
	pause = 150 * time.Millisecond
	// mine and theirs are the numbers of what the pods and their peers send.
	mine   = 100_000
	theirs = 5000
)

// newSilentNode is a node whose peer answers on no path but as the test says.
func newSilentNode(t testing.TB) *node {
	t.Helper()
	n := newNode(t)
	n.silent = true
	n.reset(t)
	return n
}

// sends is data of the pod, and hears what its peer sends.
func (e ends) sends(sequence uint32) segment {
	return e.out().with(func(s *segment) {
		s.sequence, s.answer, s.options, s.payload = mine+sequence, theirs, dataSignal(), make([]byte, 100)
	})
}

func (e ends) hears(acknowledged uint32, payload int) segment {
	return e.flip().out().with(func(s *segment) {
		s.sequence, s.answer, s.payload = theirs, mine+acknowledged, make([]byte, payload)
	})
}

// eachRole gives a flow of either role on green that has sent something and was answered.
func eachRole(t *testing.T, n *node, f func(t *testing.T, e ends)) {
	for kind, begin := range kinds {
		t.Run(kind, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.reset(t)
				e = begin(n, t, e, green)
				n.goesBy(t, e.sends(0))
				n.ingress(t, green, e.hears(100, 0).frame())
				f(t, e)
			})
		})
	}
}

// goesBy is the path by which a segment goes on that comes to blue's NIC, as the routes say.
func (n *node) goesBy(t testutil.TB, s segment) int {
	t.Helper()
	if n.egress(t, blue, s.frame()) == next {
		return blue
	}
	path := slices.Index(n.nics[:], n.mustFlow(t, s).Redirected)
	require.Equal(t, next, n.egress(t, path, s.frame()), "it comes by once more")
	return path
}

func (n *node) requireGoesBy(t testutil.TB, path int, s segment, message string) {
	t.Helper()
	require.Equal(t, pathNames[path], pathNames[n.goesBy(t, s)], message)
}

// avoidsGreen has the flow repeat what is not answered, and returns where it goes instead.
func (n *node) avoidsGreen(t *testing.T, e ends, sequence uint32) int {
	t.Helper()
	n.requireGoesBy(t, green, e.sends(sequence), "data at first")
	time.Sleep(quiet)
	by := n.goesBy(t, e.sends(sequence))
	require.NotEqual(t, green, by, "what was repeated went the same way")
	return by
}

func TestWhatIsRepeatedWithoutAnAnswerTakesAnotherPath(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		by := n.avoidsGreen(t, e, 100)
		n.requireGoesBy(t, by, e.sends(200), "new data")
		n.requireGoesBy(t, by, e.out(), "an acknowledgement")
	})
}

func TestWhatIsRepeatedAfterAnAnswerStays(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		n.egress(t, blue, e.sends(100).frame())
		time.Sleep(quiet)
		n.ingress(t, green, e.hears(100, 0).frame())
		n.requireGoesBy(t, green, e.sends(100), "repeated after an answer")
		n.requireGoesBy(t, green, e.sends(100), "repeated at once")
	})
}

func TestTheTickOfWhatWaitsIsTheClocks(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		for i := range uint32(5) {
			before := tick(t)
			n.goesBy(t, e.sends(100+100*i))
			require.InDelta(t, before, n.mustFlow(t, e.out()).Unanswered, 500, "half a second, as machines are busy")
			n.ingress(t, green, e.hears(200+100*i, 0).frame())
			require.Zero(t, n.mustFlow(t, e.out()).Unanswered)
			time.Sleep(30 * time.Millisecond)
		}
	})
}

func TestTheClockIsReadAgainOnceItHasMoved(t *testing.T) {
	n := newSilentNode(t)
	e := n.begin(t, endsOf[4], green)
	reading := func() uint64 { return *lookup[uint64](t, n.maps.ClockReadings, uint32(0)) }
	n.goesBy(t, e.sends(0))
	n.ingress(t, green, e.hears(100, 0).frame())
	first := reading()
	require.NotZero(t, uint32(first))
	time.Sleep(quiet)
	n.goesBy(t, e.sends(100))
	require.NotEqual(t, reading()>>32, first>>32, "the count of the kernel's timer")
	require.Greater(t, uint32(reading()), uint32(first), "the tick")
}

func TestANewPieceOfDataStays(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		for i := range uint32(3) {
			n.requireGoesBy(t, green, e.sends(100+i*100), "new data")
			time.Sleep(quiet)
		}
	})
}

func TestAFlowWaitsAsLongAsItsAnswersTake(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		n.egress(t, blue, e.sends(100).frame())
		time.Sleep(7 * quiet)
		n.ingress(t, green, e.hears(200, 0).frame())
		n.requireGoesBy(t, green, e.sends(200), "data")
		time.Sleep(2 * quiet) // a busy machine takes it for longer
		n.requireGoesBy(t, green, e.sends(200), "repeated sooner than the last answer came")
		time.Sleep(6 * quiet)
		require.NotEqual(t, green, n.goesBy(t, e.sends(200)), "repeated later than that")
	})
}

func TestWhatComesInByAnAvoidedPathBringsTheFlowBack(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		by := n.avoidsGreen(t, e, 100)
		n.ingress(t, by, e.hears(200, 0).frame())
		require.NotEqual(t, green, n.goesBy(t, e.sends(200)), "answered by another path")
		n.ingress(t, green, e.hears(200, 0).frame())
		n.requireGoesBy(t, green, e.sends(200), "answered by its own path")
	})
}

func TestAPathThatAnswersOthersIsNotAvoided(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		n.goesBy(t, e.sends(100))
		time.Sleep(quiet)
		n.setAnswered(t, green, tick(t))
		n.requireGoesBy(t, green, e.sends(100), "repeated")
	})
}

func TestAnAvoidedPathThatAnswersOthersIsTakenAgain(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		n.avoidsGreen(t, e, 100)
		time.Sleep(quiet)
		n.setAnswered(t, green, tick(t))
		n.requireGoesBy(t, green, e.sends(200), "data")
	})
}

func TestAnAvoidedPathIsTriedAgainAfterAWhile(t *testing.T) {
	n := newSilentNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		for round := range uint32(2) {
			n.avoidsGreen(t, e, round*100)
			flow := *n.mustFlow(t, e.out())
			require.Equal(t, uint8(round+1), flow.Tries, "longer each time")
			n.setAnswered(t, green, 0)
			flow.AvoidedAt -= 2048<<round - 100
			n.putFlow(t, e.out(), flow)
			require.NotEqual(t, green, n.goesBy(t, e.out()), "a little sooner")
			flow.AvoidedAt -= 100
			n.putFlow(t, e.out(), flow)
			n.requireGoesBy(t, green, e.out(), "in time")
		}
	})
}

func TestAFlowThatAvoidsAllPathsStillSends(t *testing.T) {
	n := newSilentNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		n.egress(t, blue, e.sends(100).frame())
		for range 2 * paths {
			time.Sleep(quiet)
			n.egress(t, blue, e.sends(100).frame())
		}
		require.Equal(t, uint8(allPaths), n.mustFlow(t, e.out()).Avoided&allPaths)
		require.GreaterOrEqual(t, n.goesBy(t, e.sends(200)), 0)
	})
}

func TestAFlowOnItsOnlyPathStaysThere(t *testing.T) {
	n := newSilentNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		n.setNode(t, 1<<green)
		n.egress(t, blue, e.sends(100).frame())
		time.Sleep(quiet)
		n.requireGoesBy(t, green, e.sends(100), "repeated")
	})
}

// The one path that its policy allows, while the node and the peer have others.
func TestAFlowStaysOnTheOnlyPathThatItsPolicyAllows(t *testing.T) {
	only := preferring(1 << green)
	only.Allowed = 1 << green
	for name, preference := range map[string]uplink.ToUplinkPreference{"as its flow began": {}, "as its endpoint prefers": only} {
		t.Run(name, func(t *testing.T) {
			n := newSilentNode(t)
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.reset(t)
				n.selectPod(t, weights(0, 1, 0))
				n.prefer(t, preference)
				e = n.begin(t, e, green)
				n.goesBy(t, e.sends(0))
				n.ingress(t, green, e.hears(100, 0).frame())
				n.goesBy(t, e.sends(100))
				time.Sleep(quiet)
				n.requireGoesBy(t, green, e.sends(100), "repeated")
				n.requireGoesBy(t, green, e.sends(200), "new data")
			})
		})
	}
}

func TestEachDepartureFromAPathIsCountedOnce(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		before := n.departures(t)
		by := n.avoidsGreen(t, e, 100)
		n.goesBy(t, e.sends(200))
		n.ingress(t, by, e.hears(300, 0).frame())
		n.goesBy(t, e.out())
		before[green]++
		require.Equal(t, before, n.departures(t), "after it left green")
		n.ingress(t, green, e.hears(300, 0).frame())
		n.requireGoesBy(t, green, e.out(), "after green answered")
		require.Equal(t, before, n.departures(t), "after it went back")
	})
}

// departures counts them by path.
func (n *node) departures(t *testing.T) (counts [maxPaths]uint64) {
	t.Helper()
	for path := range counts {
		counts[path] = *lookup[uint64](t, n.maps.Departures, uint32(path))
	}
	return counts
}

// A forger's packets come by another interface than the pod's.
func TestRepetitionsFromAnotherInterfaceChangeNoPath(t *testing.T) {
	for kind, sends := range map[string]uint8{"little": 0, "much": uplink.SendsMuch} {
		t.Run("of a flow that sends "+kind, func(t *testing.T) {
			n := newSilentNode(t)
			eachRole(t, n, func(t *testing.T, e ends) {
				before := *n.mustFlow(t, e.out())
				before.Subtype = before.Subtype&^uplink.SendsMuch | sends
				n.putFlow(t, e.out(), before)
				clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows)
				for range 3 {
					n.run(t, n.to, e.sends(100).frame(), skBuff{Ifindex: n.nics[green], IngressIfindex: 4242})
					time.Sleep(quiet)
				}
				require.Equal(t, before, *n.mustFlow(t, e.out()))
				require.Nil(t, n.busy(t, e), "the agent is told of it")
				n.requireGoesBy(t, green, e.sends(100), "the pod's own data")
			})
		})
	}
}

// Its acknowledgements are lost, so the other end repeats, and has found another path.
func TestWhoOnlyReceivesLeavesThePathOnWhichItIsNotHeard(t *testing.T) {
	n := newSilentNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.begin(t, e, green)
		n.requireGoesBy(t, green, e.out().with(func(s *segment) { s.answer = theirs }), "an acknowledgement")
		n.ingress(t, green, e.hears(0, 700).frame())
		n.ingress(t, blue, e.hears(0, 700).frame())
		time.Sleep(pause)
		n.ingress(t, green, e.hears(0, 700).frame())
		n.ingress(t, blue, e.hears(0, 0).frame())
		n.requireGoesBy(t, green, e.out(), "after repetitions at once and by its own path, and an empty segment")
		n.ingress(t, blue, e.hears(0, 700).frame())
		require.NotEqual(t, green, n.goesBy(t, e.out()), "after a repetition by another path")
	})
}

// The other end has left the path: what was lost there comes by another one.
func TestWhoOnlyReceivesLeavesThePathThatTheOtherEndHasLeft(t *testing.T) {
	n := newSilentNode(t)
	hears := func(e ends, number uint32, payload int) segment {
		return e.hears(0, payload).with(func(s *segment) { s.sequence += number })
	}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		acknowledges := func(number uint32) segment {
			return e.out().with(func(s *segment) { s.answer = theirs + number })
		}
		begin := func() {
			n.reset(t)
			e = n.begin(t, e, green)
			n.ingress(t, green, hears(e, 700, 700).frame())
			n.requireGoesBy(t, green, acknowledges(1400), "an acknowledgement")
		}
		begin()
		n.ingress(t, blue, hears(e, 1400, 700).frame())
		n.requireGoesBy(t, green, acknowledges(2100), "after data by another path without a pause")
		time.Sleep(pause)
		n.ingress(t, blue, hears(e, 2100, 700).frame())
		n.requireGoesBy(t, green, acknowledges(2800), "after data by the path by which it came before")

		begin()
		time.Sleep(pause)
		n.ingress(t, blue, hears(e, 1400, 0).frame())
		n.requireGoesBy(t, green, acknowledges(1400), "after an empty segment by another path")

		begin()
		time.Sleep(pause)
		n.setAnswered(t, green, tick(t))
		n.ingress(t, blue, hears(e, 1400, 700).frame())
		n.requireGoesBy(t, green, acknowledges(2100), "where its path answers others")

		begin()
		time.Sleep(pause)
		n.ingress(t, blue, hears(e, 1400, 700).frame())
		require.NotEqual(t, green, n.goesBy(t, acknowledges(2100)), "after data by another path")
	})
}

func TestASYNThatIsRepeatedTakesAnotherPath(t *testing.T) {
	n := newSilentNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for _, option := range [][]byte{capable(1), join(token)} {
			n.reset(t)
			first := n.goesBy(t, e.syn(option))
			time.Sleep(quiet)
			require.NotEqual(t, first, n.goesBy(t, e.syn(option)))
		}
	})
}

// A firewall may let none of MPTCP's through, or the packet was lost: a connection has one path to begin on, a
// further subflow is for its path.
func TestASYNThatIsRepeatedWhereItsPathAnswersOthersIsForAnotherPathUnlessItJoins(t *testing.T) {
	n := newSilentNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for name, option := range map[string][]byte{"begins": capable(1), "joins": join(token)} {
			n.reset(t)
			n.begin(t, e.port(4001), blue)
			var by []int
			for range 4 {
				by = append(by, n.goesBy(t, e.syn(option)))
				time.Sleep(quiet)
				for path := range paths {
					n.setAnswered(t, path, tick(t))
				}
			}
			if name == "joins" {
				require.Equal(t, []int{by[0], by[0], by[0], by[0]}, by)
				continue
			}
			next := func(path int) int { return (path + 1) % paths }
			require.Equal(t, []int{by[0], next(by[0]), next(next(by[0])), by[0]}, by)
			timed := n.lasted(t).Timed
			require.Equal(t, []uint32{1, 1, 1}, timed[:paths], "each path's try")
		}
	})
}

// The flow has avoided its path before, and it is not known any more when it began.
func TestASYNThatAvoidedItsPathAndIsRepeatedAgainIsTimedOnce(t *testing.T) {
	n := newSilentNode(t)
	n.begin(t, endsOf[4].port(4001), blue)
	syn := endsOf[4].syn(capable(1))
	by := []int{n.goesBy(t, syn)}
	time.Sleep(quiet)
	by = append(by, n.goesBy(t, syn))
	for range 2 {
		time.Sleep(quiet)
		for path := range paths {
			n.setAnswered(t, path, tick(t))
		}
		by = append(by, n.goesBy(t, syn))
	}
	require.NotEqual(t, by[0], by[1], "it is silent")
	require.Equal(t, by[0], by[2], "it has answered others since")
	require.NotEqual(t, by[0], by[3], "it answers others, and not this")
	timed, all := n.lasted(t).Timed, uint32(0)
	for _, one := range timed {
		all += one
	}
	require.EqualValues(t, 1, all)
}

func TestAnEndThatIsRepeatedTakesAnotherPath(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		end := e.out().with(func(s *segment) { s.sequence, s.answer, s.flags = mine+100, theirs, fin|ack })
		n.requireGoesBy(t, green, end, "the first FIN")
		time.Sleep(quiet)
		require.NotEqual(t, green, n.goesBy(t, end), "the second one")
	})
}
