// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
)

// seenPath is what was seen of a path of late: what its subflow moves at its best, in Mbit/s, and
// what waits there.
type seenPath struct{ peak, held float64 }

// connectionOver has a subflow on each of these paths, and gets so much.
func connectionOver(rate float64, paths ...seenPath) (*connection, []subflow) {
	c := &connection{subflows: map[ends]*history{}, looks: long}
	c.rate.add(rate*mbit, recent)
	var subflows []subflow
	for i, path := range paths {
		of := ends{local: netip.AddrPortFrom(netip.MustParseAddr("10.244.1.2"), uint16(40000+i))}
		peak := path.peak * mbit
		c.subflows[of] = &history{looks: long, peak: peak, moved: peak, held: path.held, rates: []float64{peak}}
		c.peak = max(c.peak, peak)
		subflows = append(subflows, subflow{ends: of, path: uint8(i)})
	}
	return c, subflows
}

func TestPathsThatCarryLittleAreGivenUpBesideSeveralOthers(t *testing.T) {
	const queue = 80_000
	for name, test := range map[string]struct {
		rate  float64
		paths []seenPath
		is    bool
		path  uint8
		keeps uint8
	}{
		"two good ones and one that carries little":        {33, []seenPath{{27, queue}, {3, queue}, {28, queue}}, true, 2, 1 << 0},
		"a good one, a middling one, and one with little":  {11, []seenPath{{1, queue}, {28, queue}, {10, queue}}, true, 1, 1 << 2},
		"what the good ones carry is reached":              {52, []seenPath{{27, queue}, {3, queue}, {28, queue}}, false, 0, 0},
		"one good one alone":                               {10, []seenPath{{28, queue}, {3, queue}, {1, queue}}, false, 0, 0},
		"all are alike":                                    {30, []seenPath{{28, queue}, {27, queue}, {29, queue}}, false, 0, 0},
		"a good one, and two that carry little or nothing": {40, []seenPath{{76, queue / 20}, {2, queue}, {0, queue}}, false, 0, 0},
		"two good ones and one that lets nothing through":  {33, []seenPath{{27, queue}, {0, queue}, {28, queue}}, true, 2, 1 << 0},
		"the good one has nothing to send":                 {1, []seenPath{{0.2, 500}, {1, queue}, {1, queue}}, false, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, subflows := connectionOver(test.rate, test.paths...)
			next, is := c.toGiveUpSome(time.Unix(1000, 0), subflows)
			require.Equal(t, test.is, is)
			if is {
				require.Equal(t, test.path, next.path)
				require.Equal(t, test.keeps, next.keeps)
			}
		})
	}
}

func TestOfPathsWhoseRatesTCPDoesNotKnowTheOneThatMovesMoreIsTheBest(t *testing.T) {
	for _, good := range []int{0, 1} {
		paths := []seenPath{{peak: 0.2}, {peak: 0.2}, {peak: 2}}
		paths[good].peak = 5
		c, subflows := connectionOver(7, paths...)
		for i := range subflows[:2] {
			c.subflows[subflows[i].ends].rates = []float64{4000 * mbit}
		}
		subflows[2].rtt = 10 * time.Millisecond
		path, _, sure := c.best(time.Unix(1000, 0), subflows, nil)
		require.Equal(t, uint8(good), path)
		require.False(t, sure)
	}
}

func TestASmallWindowIsLookedAtForLongerBeforeSomePathsAreGivenUp(t *testing.T) {
	const queue = 80_000
	now := time.Unix(1000, 0)
	for name, test := range map[string]struct {
		looks  int
		narrow bool
		partAt time.Time
		order  order
	}{
		"after a few looks a full send buffer is enough": {looks: soon, order: share},
		"a full window is not":                           {looks: soon, narrow: true, order: nothing},
		"but after more":                                 {looks: long, narrow: true, order: share},
		"never soon after that was tried in vain":        {looks: long, partAt: now.Add(time.Second), order: nothing},
	} {
		t.Run(name, func(t *testing.T) {
			c, subflows := connectionOver(33, seenPath{27, queue}, seenPath{3, queue}, seenPath{28, queue})
			c.looks, c.partAt = test.looks, test.partAt
			for range long {
				c.limits.add(sight{full: true, narrow: test.narrow, stuck: true})
			}
			require.Equal(t, test.order, c.lookApart(now, subflows))
			require.Equal(t, test.order == share, c.isTrying(true))
			require.Equal(t, test.order == share, c.keeps != 0)
		})
	}
}

// tries has a connection that got so much try to share a path, and get another rate then.
func tries(before, rate float64, next arrangement) *connection {
	c := &connection{}
	c.rate.add(before*mbit, recent)
	next.shared = true
	c.try(time.Unix(1000, 0), next)
	c.looks = recent
	for range recent {
		c.rate.add(rate*mbit, recent)
	}
	return c
}

func TestWhereToGiveUpSomePathsGivesNoMoreAllAreTriedByOneAtOnce(t *testing.T) {
	now := time.Unix(1001, 0)
	c := tries(30, 20, arrangement{keeps: 1})
	require.Equal(t, part, c.judge(now))
	require.False(t, now.Before(c.again))
	require.True(t, now.Before(c.partAt))
	require.Empty(t, c.alone, "what a path gives that not all shared")
}

func TestWhereOnePathGivesNoMoreThanSeveralWithoutTheWorstTheseStay(t *testing.T) {
	now, several := time.Unix(1001, 0), arrangement{shared: true, path: 2, keeps: 1}
	refuted := several
	refuted.refuted = true
	for rate, want := range map[float64]arrangement{28: refuted, 60: {shared: true, path: 1}} {
		c := tries(30, rate, arrangement{path: 1})
		c.other = several
		c.judge(now)
		require.True(t, c.hasSettled(true))
		require.Equal(t, want, c.arrangement, "where one path gives %v Mbit/s", rate)
	}
}

func TestSubflowsOfPathsThatAreNotGivenUpStayThere(t *testing.T) {
	local := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("192.0.2.1"), port) }
	f := &found{
		flows: []datapath.BusyFlow{
			{Local: local(1), Path: 0, Shared: true, SharedPath: 2}, {Local: local(2), Path: 1},
			{Local: local(3), Path: 2}, {Local: local(4), Path: 2, Shared: true, SharedPath: 0},
		},
		own: []int{0, 1, 2, noPath},
	}
	n := New(Options{Datapath: told{local(1): 2, local(4): 0}, Log: testr.New(t)})
	c := &connection{arrangement: arrangement{shared: true, path: 2, keeps: 1 << 0}}
	require.NoError(t, n.follow(c, nothing, f))
	require.Equal(t, told{local(2): 2, local(3): 2, local(4): 2}, n.options.Datapath)
}

func TestWhatAnEarlierAgentLeftSharedIsToldFromWhatItKept(t *testing.T) {
	f := &found{flows: []datapath.BusyFlow{{Path: 0}, {Path: 2, Shared: true, SharedPath: 2}, {Path: 2, Shared: true, SharedPath: 2}}}
	require.Equal(t, uint8(1<<0), f.kept())
}

func TestTheNextConnectionKeepsThePathsThatTheOneBeforeItKept(t *testing.T) {
	now, l := time.Unix(1000, 0), outcomes{}
	found := tries(10, 50, arrangement{path: 2, keeps: 1 << 0, several: true, cheap: true})
	found.widest = 64 << 10
	trying := found.trying
	found.judge(now)
	l.learn(now, addresses{}, trying, found)
	next := &connection{}
	l.tell(now, addresses{}, next, []subflow{{path: 2}})
	require.True(t, next.hasSettled(true))
	require.Equal(t, uint8(1<<0), next.keeps)
}
