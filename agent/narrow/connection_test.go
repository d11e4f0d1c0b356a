// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	mbit     = 1e6 / 8
	tick     = 67 * time.Millisecond
	goodPath = 0
	slowPath = 1
)

// network is what a connection with two subflows gets, by its own paths and by a shared one.
type network struct {
	apart         [2]float64 // by each path
	joined        [2]float64 // by each path when both subflows take it
	rates         [2]float64 // at which TCP says that each delivers
	rtts          [2]time.Duration
	receiver      uint64  // the window
	fills         float64 // the part of the window that is under way
	stuck         float64 // the part that waits for the slow path while each subflow takes its own
	waitsTogether float64 // and while they share one
	content       bool    // the application writes little at once, and waits
	paced         bool
	loses         [2]float64 // the part that each path has sent again
	buffered      bool       // the send buffer is what is full
	// waitsNowAndThen has what waits for the slow path do so at every fourth look alone.
	waitsNowAndThen bool
}

// narrow has the receiver's window hold back what the good path could carry.
var narrow = network{
	apart: [2]float64{20 * mbit, 10 * mbit}, joined: [2]float64{95 * mbit, 9 * mbit}, rates: [2]float64{80 * mbit, 10 * mbit},
	rtts: [2]time.Duration{3 * time.Millisecond, 40 * time.Millisecond}, receiver: 64 << 10, fills: 1, stuck: 0.5,
}

// equal paths fill a small window too.
var equal = network{
	apart: [2]float64{75 * mbit, 70 * mbit}, joined: [2]float64{94 * mbit, 94 * mbit}, rates: [2]float64{95 * mbit, 95 * mbit},
	rtts: [2]time.Duration{3 * time.Millisecond, 3 * time.Millisecond}, receiver: 64 << 10, fills: 1, stuck: 0.4,
}

// simulation runs a connection in a network.
type simulation struct {
	*connection
	network
	now     time.Time
	acked   [2]uint64
	resent  [2]uint64
	shared  bool
	earlier outcomes
}

func simulate(of network) *simulation {
	return &simulation{connection: &connection{}, network: of, now: time.Unix(1000, 0)}
}

func (s *simulation) subflows() []subflow {
	all := make([]subflow, 2)
	for i := range all {
		path := uint8(i)
		if s.shared {
			path = s.path
		}
		local := netip.AddrPortFrom(netip.MustParseAddr("10.244.1.2"), uint16(40000+i))
		all[i] = subflow{ends{local, netip.MustParseAddrPort("10.244.2.2:80")}, path, s.acked[i], s.rates[i], s.rtts[i], s.rtts[i], s.receiver, 0, s.resent[i], s.paced, false}
	}
	stuck := s.stuck
	if s.waitsNowAndThen && s.looks%4 != 0 {
		stuck = 0
	}
	if s.shared {
		stuck = s.waitsTogether
	}
	all[1].queued = uint64(s.fills * (1 - stuck) * float64(s.receiver))
	return all
}

func (s *simulation) backlog() backlog {
	underWay := uint64(s.fills * float64(s.receiver))
	if s.content {
		return backlog{all: underWay / 10, underWay: underWay / 10}
	}
	if s.buffered {
		return backlog{all: underWay, underWay: underWay, used: underWay, buffer: underWay}
	}
	return backlog{all: 10 * s.receiver, underWay: underWay}
}

// runs has it go on for some time, and returns what was ordered.
func (s *simulation) runs(duration time.Duration) (orders []order) {
	for end := s.now.Add(duration); s.now.Before(end); s.now = s.now.Add(tick) {
		for i := range s.acked {
			rate := s.apart[i]
			if s.shared {
				rate = s.joined[s.path] / 2
			}
			path := i
			if s.shared {
				path = int(s.path)
			}
			s.acked[i] += uint64(rate * tick.Seconds())
			s.resent[i] += uint64(s.loses[path] * rate * tick.Seconds())
		}
		trying := s.trying
		order := s.look(s.now, s.subflows(), s.backlog())
		if s.earlier != nil {
			s.earlier.learn(s.now, addresses{}, trying, s.connection)
		}
		switch order {
		case share:
			s.shared = true
		case part:
			s.shared = false
		case nothing:
			continue
		}
		orders = append(orders, order)
	}
	return orders
}

// isTrying tells whether it shares a path, or leaves by its own ones, for a try.
func (c *connection) isTrying(shared bool) bool { return c.trying && c.shared == shared }

func TestANarrowConnectionComesToShareTheGoodPathWithinASecond(t *testing.T) {
	s := simulate(narrow)
	require.Equal(t, []order{share}, s.runs(time.Second))
	require.True(t, s.hasSettled(true))
	require.Equal(t, uint8(goodPath), s.path)
	require.Empty(t, s.runs(restTogether-time.Second), "it stays there")
}

func TestAFewLooksDecideWhereTheOtherPathsCarryLittle(t *testing.T) {
	for name, test := range map[string]struct {
		slow float64
		soon bool
	}{
		"a tenth of what the good path delivers": {slow: 8 * mbit, soon: true},
		"a third":                                {slow: 26 * mbit},
	} {
		t.Run(name, func(t *testing.T) {
			of := narrow
			of.apart = [2]float64{30 * mbit, test.slow}
			s := simulate(of)
			s.stuck = 0.4
			orders := s.runs((soon + 2) * tick)
			require.Equal(t, test.soon, s.shared, "%v", orders)
		})
	}
}

// What TCP tells of such a path is beyond belief: a shaper lets the little that is sent there by
// at once.
func TestAFewLooksDecideWhereTheOtherPathsAnswersTakeMuchLonger(t *testing.T) {
	of := narrow
	of.apart, of.rates[goodPath] = [2]float64{6 * mbit, 9 * mbit}, 1200*mbit
	s := simulate(of)
	require.Equal(t, []order{share}, s.runs((soon+2)*tick))
	require.Equal(t, uint8(goodPath), s.path)

	of.rtts[slowPath] = 2 * of.rtts[goodPath]
	require.Empty(t, simulate(of).runs((soon+2)*tick), "which path is the good one is not known so soon")
}

// Alike paths look so when the queue is at one of them.
func TestATryThatGivesMuchLessIsUndoneAfterAFewLooks(t *testing.T) {
	of := equal
	of.apart, of.rates[goodPath], of.rtts[goodPath] = [2]float64{60 * mbit, 90 * mbit}, 1500*mbit, 100*time.Microsecond
	s := simulate(of)
	for s.hasSettled(false) {
		require.Less(t, s.now.Sub(time.Unix(1000, 0)), time.Second)
		s.runs(tick)
	}
	require.Equal(t, []order{part}, s.runs((settling+few+1)*tick))
}

func TestAConnectionThatGetsMoreByTwoPathsIsLeftAlone(t *testing.T) {
	for name, of := range map[string]network{
		"equal paths": equal,
		"a window that is wide enough": {
			apart: [2]float64{94 * mbit, 9 * mbit}, joined: [2]float64{95 * mbit, 9 * mbit}, rates: [2]float64{95 * mbit, 10 * mbit},
			rtts: [2]time.Duration{3 * time.Millisecond, 300 * time.Millisecond}, receiver: 8 << 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, simulate(of).runs(time.Minute))
		})
	}
}

// Each of these gets less than its best path could carry, by several paths and by one, until
// its limit is lifted just when it would be tried by one.
func TestAConnectionThatItsWindowDoesNotHoldBackIsLeftAlone(t *testing.T) {
	for name, change := range map[string]func(*network){
		// What is sent waits on no path then.
		"the application writes no more":                                   func(n *network) { n.content, n.rtts[slowPath] = true, n.rtts[goodPath] },
		"its pace is limited":                                              func(n *network) { n.paced = true },
		"its congestion windows are not filled":                            func(n *network) { n.fills = 0.3 },
		"its window is full, and what waits is on its way on its own path": func(n *network) { n.stuck = 0.1 },
	} {
		t.Run(name, func(t *testing.T) {
			of := narrow
			change(&of)
			s := simulate(of)
			for range 50 {
				require.Empty(t, s.runs(time.Second))
				rises := s.apart
				s.apart = [2]float64{90 * mbit, 10 * mbit}
				require.Empty(t, s.runs(3*tick), "its limit is lifted for a moment")
				s.apart = rises
			}
		})
	}
}

func TestAConnectionPartsAsSoonAsSomethingElseThanItsWindowHoldsItBack(t *testing.T) {
	for name, change := range map[string]func(*network){
		// What is sent waits on no path then.
		"the application writes no more": func(n *network) { n.content, n.rtts[slowPath] = true, n.rtts[goodPath] },
		"its pace is limited":            func(n *network) { n.paced = true },
	} {
		t.Run(name, func(t *testing.T) {
			s := simulate(narrow)
			s.runs(3 * time.Second)
			require.True(t, s.shared)
			change(&s.network)
			s.joined[goodPath] = 12 * mbit
			require.Equal(t, []order{part}, s.runs(time.Second))
			require.True(t, s.hasSettled(false))
			require.Empty(t, s.runs(time.Minute))
		})
	}
}

func TestAMomentInWhichTheApplicationWritesNothingIsNoReasonToPart(t *testing.T) {
	s := simulate(narrow)
	s.runs(2 * time.Second)
	for range 5 {
		s.content = true
		require.Empty(t, s.runs((few-2)*tick))
		s.content = false
		require.Empty(t, s.runs(few*tick))
	}
	require.True(t, s.shared)
}

func TestATryApartEndsTheSharingWhereTheWindowIsNotFullAnyLonger(t *testing.T) {
	s := simulate(narrow)
	s.runs(3 * time.Second)
	require.True(t, s.shared)
	s.fills, s.apart = 0.5, s.joined // nothing is gained or lost
	require.Equal(t, []order{part, part}, s.runs(restTogether))
	require.True(t, s.hasSettled(false))
	require.False(t, s.shared)
	require.Empty(t, s.runs(time.Minute))
}

func TestAfterAChangeOfThePlanAConnectionIsLookedAtAnew(t *testing.T) {
	s := simulate(narrow)
	s.runs(3 * time.Second)
	require.True(t, s.shared)
	require.Equal(t, part, s.startOver(s.now))
	s.shared = false
	require.Empty(t, s.runs(firstRest-tick))
	require.Equal(t, []order{share}, s.runs(2*time.Second))
}

func TestAConnectionThatStandsStillNowAndThenAndYetGetsMoreByTwoPathsIsLeftAlone(t *testing.T) {
	of := equal
	s := simulate(of)
	for range 30 {
		s.apart, s.stuck = of.apart, of.stuck
		require.Empty(t, s.runs(1600*time.Millisecond))
		s.apart, s.stuck = [2]float64{}, 0.9
		require.Empty(t, s.runs(400*time.Millisecond))
	}
}

func TestAConnectionThatGetsALittleLessThanItsBestPathGivesComesToShareItWithinSeconds(t *testing.T) {
	of := narrow
	of.apart = [2]float64{40 * mbit, 25 * mbit}
	s := simulate(of)
	require.Empty(t, s.runs(steady*tick-tick))
	require.Equal(t, []order{share}, s.runs(2*time.Second))
	require.True(t, s.hasSettled(true))
	require.Equal(t, uint8(goodPath), s.path)
}

// What came by the good path and waits for the other one is not judged as what the good one
// gives.
func TestATryIsNotJudgedWhileDataWaitsForTheOtherPath(t *testing.T) {
	s := simulate(narrow)
	for s.hasSettled(false) {
		s.runs(tick)
	}
	moves := s.joined
	s.joined, s.waitsTogether = [2]float64{mbit, mbit}, 0.9
	require.Empty(t, s.runs((long-2)*tick))
	require.True(t, s.isTrying(true))
	s.joined, s.waitsTogether = moves, 0
	s.runs(4 * tick)
	require.True(t, s.hasSettled(true))
}

func TestThePathOfASubflowThatSendsLittleInBurstsIsNotTakenForTheBest(t *testing.T) {
	lossy := narrow
	lossy.rates[slowPath] = 5000 * mbit
	lossy.apart[slowPath] = 5 * mbit
	s := simulate(lossy)
	require.Equal(t, []order{share}, s.runs(2*time.Second))
	require.Equal(t, uint8(goodPath), s.path)
}

// losing has the good path tell of less than the other one, which loses packets.
var losing = network{
	apart: [2]float64{45 * mbit, 40 * mbit}, joined: [2]float64{94 * mbit, 60 * mbit}, rates: [2]float64{94 * mbit, 150 * mbit},
	rtts: [2]time.Duration{3 * time.Millisecond, 3 * time.Millisecond}, receiver: 64 << 10, fills: 1, stuck: 0.4,
	loses: [2]float64{0, 0.01},
}

// starved has the good path's subflow send so little that TCP knows no rate of it.
var starved = network{
	apart: [2]float64{1 * mbit, 3 * mbit}, joined: [2]float64{28 * mbit, 3 * mbit}, rates: [2]float64{1 * mbit, 3 * mbit},
	rtts: [2]time.Duration{3 * time.Millisecond, 12 * time.Millisecond}, receiver: 64 << 10, fills: 1, stuck: 0.6,
}

func TestThePathOfASubflowThatIsStarvedIsTried(t *testing.T) {
	s := simulate(starved)
	require.Equal(t, []order{share}, s.runs(2*time.Second))
	require.True(t, s.hasSettled(true))
	require.Equal(t, uint8(goodPath), s.path)

	slow := starved
	slow.joined[goodPath] = 10 * mbit
	s = simulate(slow)
	require.Equal(t, []order{share, part}, s.runs(2*time.Second), "where another path may give more")
}

func TestThePathThatLosesPacketsIsNotTakenForTheBest(t *testing.T) {
	for name, change := range map[string]func(*network){
		"what it tells of is more":   func(*network) {},
		"it moves more now and then": func(n *network) { n.apart = [2]float64{35 * mbit, 50 * mbit} },
	} {
		t.Run(name, func(t *testing.T) {
			of := losing
			change(&of)
			s := simulate(of)
			require.Equal(t, []order{share}, s.runs(2*time.Second))
			require.True(t, s.hasSettled(true))
			require.Equal(t, uint8(goodPath), s.path)
			require.Empty(t, s.runs(restTogether-2*time.Second), "it stays there")
		})
	}
}

func TestAConnectionThatGetsMoreByTwoPathsIsLeftAloneThoughOneLosesPackets(t *testing.T) {
	of := losing
	of.apart = [2]float64{75 * mbit, 70 * mbit}
	require.Empty(t, simulate(of).runs(time.Minute))
}

func TestAPathThatIsSharedBecauseAnotherOneLosesPacketsStaysSoForALittleLess(t *testing.T) {
	of := losing
	of.apart = [2]float64{46 * mbit, 44 * mbit}
	s := simulate(of)
	require.Equal(t, []order{share}, s.runs(2*time.Second))
	s.joined[goodPath] = 86 * mbit
	require.Empty(t, s.runs(restTogether-2*time.Second))
	require.True(t, s.hasSettled(true))
}

// By several paths this one gets half as much again, and then stands still for what was lost.
func TestWhereAPathLosesPacketsMoreForAMomentIsNoReasonToPart(t *testing.T) {
	s := simulate(losing)
	s.runs(2 * time.Second)
	for !s.isTrying(false) {
		s.runs(tick)
	}
	s.apart = [2]float64{75 * mbit, 70 * mbit}
	s.runs(700 * time.Millisecond)
	require.True(t, s.isTrying(false))
	s.apart = [2]float64{10 * mbit, 10 * mbit}
	s.runs(600 * time.Millisecond)
	require.True(t, s.hasSettled(true))
	require.True(t, s.shared)
}

func TestPathsThatLoseAlikeAreJudgedByWhatTheyDeliver(t *testing.T) {
	of := losing
	of.loses[goodPath] = 0.005
	of.rates = [2]float64{94 * mbit, 94 * mbit}
	require.Empty(t, simulate(of).runs(steady*tick-tick))
}

func TestWhereTheWrongPathWasTriedTheOtherOneIsNext(t *testing.T) {
	hidden := narrow
	hidden.apart = [2]float64{15 * mbit, 15 * mbit}
	hidden.rates = [2]float64{40 * mbit, 100 * mbit}
	s := simulate(hidden)
	require.Equal(t, []order{share, part, share}, s.runs(4*time.Second))
	require.Equal(t, uint8(goodPath), s.path)
	require.True(t, s.hasSettled(true))
}

func TestAShortBurstOfAPathIsNotTakenForItsRate(t *testing.T) {
	s := simulate(equal)
	for range 100 {
		s.rates[slowPath] = 5000 * mbit
		require.Empty(t, s.runs((few-1)*tick))
		s.rates[slowPath] = 95 * mbit
		require.Empty(t, s.runs(tick))
	}
}

func TestATryThatDoesNotHelpIsUndoneAndRepeatedLessAndLessOften(t *testing.T) {
	useless := narrow
	useless.joined = [2]float64{25 * mbit, 9 * mbit} // the good path delivers well, and carries little
	s := simulate(useless)
	orders := s.runs(20 * time.Minute)
	require.Equal(t, []order{share, part, share, part}, orders[:4])
	require.False(t, s.shared)
	require.Less(t, len(orders), 2*12)
	require.Equal(t, longestRest, s.rest)
}

func TestOfAConnectionThatIsStillNarrowTriesGetRarer(t *testing.T) {
	s := simulate(narrow)
	orders := s.runs(30 * time.Minute)
	require.Equal(t, []order{share, part, share, part, share}, orders[:5])
	require.True(t, s.shared)
	require.Less(t, len(orders), 1+2*13)
}

func TestSubflowsPartWhenTheWindowHasGrown(t *testing.T) {
	s := simulate(narrow)
	s.runs(2 * time.Second)
	require.True(t, s.shared)
	s.receiver, s.apart = 8<<20, [2]float64{94 * mbit, 9 * mbit}
	require.Equal(t, []order{part}, s.runs(time.Second))
	require.True(t, s.hasSettled(false))
	require.Empty(t, s.runs(time.Minute), "and stay so")
}

// What the application has not read yet, and what waits for another path, takes from the window.
func TestAWindowThatGetsWiderAndNarrowerAgainHasNotGrown(t *testing.T) {
	s := simulate(narrow)
	for !s.isTrying(true) {
		s.runs(tick)
	}
	s.receiver = narrow.receiver / 2
	for !s.hasSettled(true) {
		s.runs(tick)
	}
	for range 8 {
		require.Empty(t, s.runs(3*tick))
		s.receiver = narrow.receiver*3/2 - s.receiver
	}
}

func TestSubflowsPartWhenTheSharedPathGetsWorseThanBothWere(t *testing.T) {
	s := simulate(narrow)
	s.runs(4 * time.Second)
	require.True(t, s.shared)
	s.joined[goodPath], s.apart[goodPath], s.rates[goodPath] = 5*mbit, 5*mbit, 5*mbit
	require.Equal(t, []order{part}, s.runs(4*time.Second))
	require.True(t, s.hasSettled(false))
}

func TestAConnectionThatAnEarlierAgentHadSharePathsIsTriedApartInItsTime(t *testing.T) {
	s := simulate(narrow)
	s.adopt(s.now, goodPath, 0)
	s.shared = true
	require.Empty(t, s.runs(restTogether-time.Second))
	require.Equal(t, []order{part, share}, s.runs(3*time.Second))
}

func TestATryWaitsForWhatTheOtherPathLost(t *testing.T) {
	s := simulate(narrow)
	for s.hasSettled(false) {
		s.runs(tick)
	}
	moves := s.joined
	s.joined = [2]float64{}
	require.Empty(t, s.runs((long-2)*tick))
	require.True(t, s.isTrying(true))
	s.joined = moves
	s.runs(4 * tick)
	require.True(t, s.hasSettled(true))
}

func TestAConnectionIsJudgedByAllOfItsSubflowsAlone(t *testing.T) {
	s := simulate(narrow)
	for range 100 {
		s.now = s.now.Add(tick)
		require.Equal(t, nothing, s.look(s.now, s.subflows()[:1], s.backlog()))
	}
	require.Equal(t, nothing, s.look(s.now.Add(tick), s.subflows(), s.backlog()), "a subflow that is new")
}
