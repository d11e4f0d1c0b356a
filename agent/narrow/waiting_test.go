// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// bursts are those of a connection with a subflow on each of three paths. While each takes its own they go
// by the first one.
type bursts struct {
	*connection
	now    time.Time
	rates  [3]float64       // at which they go by each path alone
	rtts   [3]time.Duration // of a path while they go by it, which is an idle one's otherwise
	acked  uint64
	shared bool
	paced  bool          // a limit holds a subflow back
	bulk   bool          // the application has ever more to send
	idle   time.Duration // the round trips of the others, where these are not idleTrip
	long   time.Duration // the shortest round trip of the first path, where it is not idleTrip
}

const idleTrip = 100 * time.Microsecond

// slowBursts wait 15 ms on their slow path.
func slowBursts() *bursts {
	return &bursts{
		connection: &connection{}, now: time.Unix(1000, 0), rates: [3]float64{2 * mbit, 80 * mbit, 80 * mbit},
		rtts: [3]time.Duration{15 * time.Millisecond, 300 * time.Microsecond, 300 * time.Microsecond},
	}
}

func (b *bursts) by() int {
	if b.shared {
		return int(b.path)
	}
	return 0
}

func (b *bursts) subflows() []subflow {
	all := make([]subflow, 3)
	for i := range all {
		path := i
		if b.shared {
			path = int(b.path)
		}
		local := netip.AddrPortFrom(netip.MustParseAddr("10.244.1.2"), uint16(40000+i))
		all[i] = subflow{ends: ends{local, netip.MustParseAddrPort("10.244.2.2:80")}, path: uint8(path), rate: 50 * mbit, rtt: idleTrip, least: idleTrip, window: 64 << 10}
	}
	all[0].acked, all[0].rtt, all[2].paced = b.acked, b.rtts[b.by()], b.paced
	all[0].least = max(all[0].least, b.long)
	for i := range all[1:] {
		all[1+i].rtt = max(all[1+i].rtt, b.idle)
	}
	return all
}

func (b *bursts) backlog() backlog {
	if b.bulk {
		return backlog{all: 640 << 10, underWay: 64 << 10}
	}
	return backlog{all: 10 << 10, underWay: 10 << 10}
}

// run has them go on for so long, and returns what was ordered.
func (b *bursts) run(long time.Duration) []order {
	var orders []order
	for end := b.now.Add(long); b.now.Before(end); b.now = b.now.Add(tick) {
		b.acked += uint64(b.rates[b.by()] * tick.Seconds())
		if order := b.look(b.now, b.subflows(), b.backlog()); order != nothing {
			b.shared = order == share
			orders = append(orders, order)
		}
	}
	return orders
}

func TestBurstsLeaveAPathOnWhichTheyAreLate(t *testing.T) {
	for name, change := range map[string]func(b *bursts){
		"they go on faster":                        func(*bursts) {},
		"as seldom as before, and wait no longer":  func(b *bursts) { b.rates = [3]float64{mbit, mbit, mbit} },
		"they do not wait, but their path is long": func(b *bursts) { b.long = b.rtts[0] },
	} {
		t.Run(name, func(t *testing.T) {
			b := slowBursts()
			change(b)
			require.Equal(t, []order{share}, b.run(2*time.Second))
			require.True(t, b.hasSettled(true))
			require.NotZero(t, b.path)
			require.Equal(t, []order{part, share}, b.run(restTogether), "their own paths are tried, and no better")
			require.Empty(t, b.run(2*restTogether-2*time.Second), "for longer each time")
		})
	}
}

func TestBurstsStayWhereTheyAre(t *testing.T) {
	for name, change := range map[string]func(b *bursts){
		"they do not wait there":               func(b *bursts) { b.rtts[0] = time.Millisecond },
		"more goes on than the others deliver": func(b *bursts) { b.rates[0] = 60 * mbit },
		"a limit holds them back":              func(b *bursts) { b.paced = true },
		"all paths are as slow":                func(b *bursts) { b.idle = b.rtts[0] },
	} {
		t.Run(name, func(t *testing.T) {
			b := slowBursts()
			change(b)
			require.Empty(t, b.run(5*time.Second))
		})
	}
}

func TestBurstsThatWaitForAMomentStayWhereTheyAre(t *testing.T) {
	b := slowBursts()
	require.Empty(t, b.run(400*time.Millisecond))
	b.rtts[0] = idleTrip
	require.Empty(t, b.run(5*time.Second))
}

func TestBurstsThatWaitOnTheOtherPathsTooGoBack(t *testing.T) {
	b := slowBursts()
	b.rates = [3]float64{2 * mbit, 2 * mbit, 2 * mbit}
	b.rtts = [3]time.Duration{15 * time.Millisecond, 15 * time.Millisecond, 15 * time.Millisecond}
	require.Equal(t, []order{share, part}, b.run(4*time.Second))
	require.Equal(t, []order{share, part}, b.run(restTogether), "each of the others is tried")
	require.True(t, b.hasSettled(false))
	require.LessOrEqual(t, len(b.run(time.Minute)), 6, "after longer and longer")
}

func TestOfSeveralPathsBurstsComeToTheOneOnWhichTheyDoNotWait(t *testing.T) {
	b := slowBursts()
	b.rates[1], b.rtts[1] = 10*mbit, 10*time.Millisecond // better than the first, and the first that is tried
	b.run(4 * time.Second)
	require.True(t, b.hasSettled(true))
	require.EqualValues(t, 2, b.path)
}

func TestBurstsThatALimitHoldsBackUseTheirOwnPaths(t *testing.T) {
	b := slowBursts()
	b.run(2 * time.Second)
	require.True(t, b.hasSettled(true))
	b.paced = true
	require.Equal(t, []order{part}, b.run(500*time.Millisecond))
}

func TestWhatBecomesMoreThanBurstsUsesAllPathsAtOnce(t *testing.T) {
	b := slowBursts()
	b.run(2 * time.Second)
	require.True(t, b.hasSettled(true))
	b.bulk = true
	require.Equal(t, []order{part}, b.run(500*time.Millisecond))
	require.True(t, b.hasSettled(false))
}
