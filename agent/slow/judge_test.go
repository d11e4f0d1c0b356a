// SPDX-License-Identifier: Apache-2.0

package slow

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
)

// programs count connections as those of the uplinks do.
type programs struct {
	now   time.Time
	known datapath.Lasting
	pair  *pair
	ends  []ending
	turn  int
	until [3]time.Time // while a path is slow
}

// ending is when a connection that began on a path ends.
type ending struct {
	path int
	at   time.Time
	took time.Duration
}

func newPrograms() *programs {
	n := &programs{now: time.Now()}
	n.pair = adopt(n.now, &n.known)
	return n
}

// begin has a connection begin on a path and end after so long.
func (n *programs) begin(path int, took time.Duration) {
	n.known.On[path].Begun++
	n.ends = append(n.ends, ending{path, n.now.Add(took), took})
}

// pass lets time pass until the next look.
func (n *programs) pass() []verdict {
	n.now = n.now.Add(interval)
	living := n.ends[:0]
	for _, e := range n.ends {
		if e.at.After(n.now) {
			living = append(living, e)
			continue
		}
		on, time := &n.known.On[e.path], uint64(math.Log2(ticks(e.took)+1)/datapath.LastingUnit)
		on.Ended, on.Timed, on.Times, on.Squares = on.Ended+1, on.Timed+1, on.Times+time, on.Squares+time*time
		total := uint64(min(ticks(e.took), datapath.LongestLasting))
		on.Total, on.TotalSquares = on.Total+total, on.TotalSquares+total*total
	}
	n.ends = living
	verdicts := n.pair.look(n.now, &n.known)
	for _, v := range verdicts {
		n.known.On[v.path].Slow, n.until[v.path] = v.lasts > 0, n.now.Add(v.lasts)
	}
	return verdicts
}

// begins is the path on which the next connection begins: one that is slow when it is to be tried, else those
// that are not take turns.
func (n *programs) begins() int {
	for path, until := range n.until {
		if n.known.On[path].Slow && !n.now.Before(until) {
			n.until[path] = n.now.Add(time.Second)
			return path
		}
	}
	for range 3 {
		n.turn = (n.turn + 1) % 3
		if !n.known.On[n.turn].Slow {
			break
		}
	}
	return n.turn
}

// found are those of verdicts by which a path is known to be slow, or no longer.
func found(verdicts []verdict) []verdict {
	return slices.DeleteFunc(verdicts, func(v verdict) bool { return v.trial })
}

// run has three times as many connections a second begin, each of which ends after what lasts says, and returns
// which path was found to be slow, and when they first began elsewhere.
func (n *programs) run(long time.Duration, rate int, lasts func(path int) time.Duration) (verdicts []verdict, first time.Duration) {
	begun := n.now
	for n.now.Sub(begun) < long {
		for range 3 * max(1, rate/int(time.Second/interval)) {
			path := n.begins()
			n.begin(path, lasts(path))
		}
		news := n.pass()
		if first == 0 && len(news) > 0 {
			first = n.now.Sub(begun)
		}
		verdicts = append(verdicts, found(news)...)
	}
	return verdicts, first
}

// finds returns what is found while 120 connections a second begin.
func (n *programs) finds(long time.Duration, lasts func(path int) time.Duration) []verdict {
	verdicts, _ := n.run(long, 40, lasts)
	return verdicts
}

const slowOne = 2

// times are those of connections on the slow path and the other ones.
func on(slow, others time.Duration) func(int) time.Duration {
	return func(path int) time.Duration {
		if path == slowOne {
			return slow
		}
		return others
	}
}

func TestAPathOnWhichConnectionsLastMuchLongerIsSlow(t *testing.T) {
	for _, test := range []struct {
		name          string
		slow, others  time.Duration
		within        time.Duration // of its beginning; 0: never
		rate          int           // connections a second on each path
		unlikeAnother bool          // they last from half to twice as long
	}{
		{"fifty times", 500 * time.Millisecond, 10 * time.Millisecond, 2 * time.Second, 40, true},
		{"four times", 80 * time.Millisecond, 20 * time.Millisecond, 4 * time.Second, 40, true},
		{"one connection a second on each", 400 * time.Millisecond, 20 * time.Millisecond, 12 * time.Second, 1, true},
		{"none of them ends", time.Hour, 20 * time.Millisecond, 3 * time.Second, 40, true},
		{"none of them ends, and others last for half a second", time.Hour, 500 * time.Millisecond, 5 * time.Second, 40, true},
		{"two and a half times", 50 * time.Millisecond, 20 * time.Millisecond, 4 * time.Second, 40, true},
		{"four times, of a millisecond", 4 * time.Millisecond, time.Millisecond, 4 * time.Second, 40, true},
		{"half as long again", 30 * time.Millisecond, 20 * time.Millisecond, 0, 40, true},
		{"as long", 20 * time.Millisecond, 20 * time.Millisecond, 0, 40, true},
		{"four times, of next to nothing", 400 * time.Microsecond, 100 * time.Microsecond, 0, 40, false},
		{"none ends on any", time.Hour, time.Hour, 0, 40, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			n, random := newPrograms(), rand.New(rand.NewPCG(1, 2))
			lasts := on(test.slow, test.others)
			verdicts, first := n.run(13*time.Second, test.rate, func(path int) time.Duration {
				if !test.unlikeAnother {
					return lasts(path)
				}
				return time.Duration(float64(lasts(path)) * math.Exp2(2*random.Float64()-1))
			})
			if test.within == 0 {
				require.Empty(t, verdicts)
				return
			}
			require.NotEmpty(t, verdicts)
			require.Equal(t, uint8(slowOne), verdicts[0].path)
			require.Equal(t, firstRest, verdicts[0].lasts)
			require.LessOrEqual(t, first, test.within)
		})
	}
}

// stalling are the times of connections of which a share on each path waits for a packet that was lost.
func stalling(random *rand.Rand, slow, others float64) func(int) time.Duration {
	return func(path int) time.Duration {
		took := time.Duration(float64(10*time.Millisecond) * math.Exp2(2*random.Float64()-1))
		if share := on(time.Duration(slow*1000), time.Duration(others*1000))(path); time.Duration(random.IntN(1000)) < share {
			took += time.Second
		}
		return took
	}
}

func TestAPathOnWhichAFewWaitForLostPacketsIsSlow(t *testing.T) {
	for _, test := range []struct {
		name         string
		slow, others float64 // the share that waits
		rate         int
		within       time.Duration // 0: never
	}{
		{"one of 25", 0.04, 0, 200, 6 * time.Second},
		{"one of 25, and few connections", 0.04, 0, 8, 90 * time.Second},
		{"one of ten, and one of a hundred on others", 0.1, 0.01, 200, 4 * time.Second},
		{"one of 500", 0.002, 0, 200, 0},
		{"one of 25 on each", 0.04, 0.04, 200, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			n := newPrograms()
			verdicts, first := n.run(3*time.Minute, test.rate, stalling(rand.New(rand.NewPCG(5, 6)), test.slow, test.others))
			if test.within == 0 {
				require.Empty(t, verdicts)
				return
			}
			require.NotEmpty(t, verdicts)
			require.Equal(t, uint8(slowOne), verdicts[0].path)
			require.LessOrEqual(t, first, test.within)
		})
	}
}

// A pod has long connections and short ones, and each path has its turn with both.
func TestLongConnectionsOnAllPathsMakeNoneSlow(t *testing.T) {
	n, random := newPrograms(), rand.New(rand.NewPCG(3, 4))
	verdicts, _ := n.run(10*time.Minute, 12, func(int) time.Duration {
		return time.Duration(float64(20*time.Millisecond) * math.Exp2(10*random.Float64())) // up to 20 s
	})
	require.Empty(t, verdicts)
}

func TestAPathThatHasMoreToCarryForAMomentIsNotSlow(t *testing.T) {
	n := newPrograms()
	n.run(5*time.Second, 40, on(20*time.Millisecond, 20*time.Millisecond))
	verdicts, _ := n.run(time.Second, 40, on(100*time.Millisecond, 20*time.Millisecond))
	require.Empty(t, verdicts)
	verdicts, _ = n.run(20*time.Second, 40, on(20*time.Millisecond, 20*time.Millisecond))
	require.Empty(t, verdicts)
}

// slowNode is one whose slow path was just found.
func slowNode(t *testing.T, slow time.Duration) *programs {
	t.Helper()
	n := newPrograms()
	for range 40 {
		if verdicts, _ := n.run(interval, 40, on(slow, 20*time.Millisecond)); len(verdicts) > 0 {
			return n
		}
	}
	t.Fatal("the slow path is not found")
	return n
}

// Each of these waits for a second, as at a firewall that lets no SYN of MPTCP's through.
func TestFewConnectionsThatPlainlyLastLongerAreEnoughAndThenSingleOnes(t *testing.T) {
	n, waited := newPrograms(), 0
	n.run(2*time.Minute, 4, func(path int) time.Duration {
		if path == slowOne {
			waited++
			return time.Second
		}
		return 20 * time.Millisecond
	})
	t.Logf("%d connections waited", waited)
	require.LessOrEqual(t, waited, 14, "of 1,440")
}

func TestASlowPathThatStillIsRestsTwiceAsLong(t *testing.T) {
	n := slowNode(t, 400*time.Millisecond)
	var rests []time.Duration
	for _, v := range n.finds(2*time.Minute, on(400*time.Millisecond, 20*time.Millisecond)) {
		rests = append(rests, v.lasts)
	}
	require.Equal(t, []time.Duration{2 * firstRest, 4 * firstRest}, rests[:2])
}

func TestOnASlowPathThatNoLongerIsConnectionsBeginAgain(t *testing.T) {
	n := slowNode(t, 400*time.Millisecond)
	verdicts := n.finds(firstRest+6*time.Second, on(20*time.Millisecond, 20*time.Millisecond))
	require.Equal(t, []verdict{{path: slowOne}}, verdicts)
}

func TestWhereConnectionsOnOthersLastAsLongTheyBeginThereAgain(t *testing.T) {
	for _, took := range []time.Duration{100 * time.Millisecond, 400 * time.Millisecond} {
		n := slowNode(t, took)
		verdicts := n.finds(6*time.Second, on(took, 2*took))
		require.NotEmpty(t, verdicts)
		require.Zero(t, verdicts[len(verdicts)-1].lasts)
		require.False(t, n.known.On[slowOne].Slow)
	}
}

// full are paths that have always more to carry: each ends so many connections a second, one after the other, and
// each of the clients begins its next one then.
type full struct {
	*programs
	rates  [3]float64
	queues [3][]time.Time // when those began that wait
	done   [3]float64
}

// run returns how many connections ended in a second.
func (f *full) run(long time.Duration) float64 {
	const step = time.Millisecond
	before := f.ended()
	for begun := f.now; f.now.Sub(begun) < long; {
		at := f.now
		for range interval / step {
			at = at.Add(step)
			for path, rate := range f.rates {
				if len(f.queues[path]) == 0 {
					continue
				}
				if f.done[path] += rate * step.Seconds(); f.done[path] >= 1 {
					f.end(path, at)
				}
			}
		}
		f.pass()
	}
	return float64(f.ended()-before) / long.Seconds()
}

// end ends the connection that began first on a path, and its client begins the next one.
func (f *full) end(path int, at time.Time) {
	f.ends = append(f.ends, ending{path, at, at.Sub(f.queues[path][0])})
	f.queues[path], f.done[path] = f.queues[path][1:], f.done[path]-1
	f.join(f.begins(), at)
}

func (f *full) join(path int, at time.Time) {
	f.known.On[path].Begun++
	f.queues[path] = append(f.queues[path], at)
}

func (f *full) ended() (sum uint32) {
	for _, on := range f.known.On {
		sum += on.Ended
	}
	return sum
}

// Where many wait for one of two paths they go on doing so, as each path ends as many as begin there. That is no
// reason to do without either of them.
func TestFullPathsAreUsedHoweverManyWaitForThem(t *testing.T) {
	for name, test := range map[string]struct {
		rates   [3]float64
		waiting [3]int
		least   float64 // of what all paths together can, over a minute
	}{
		"three paths, and all wait for one":               {[3]float64{110, 110, 110}, [3]int{18, 1, 1}, 0.95},
		"three paths, and many wait for two":              {[3]float64{110, 110, 110}, [3]int{9, 9, 2}, 0.95},
		"a slow one, for which most wait when all begins": {[3]float64{110, 110, 2}, [3]int{7, 7, 6}, 0.9},
		"of two thirds":                     {[3]float64{110, 110, 70}, [3]int{7, 7, 6}, 0.72}, // which is what turns give
		"large files":                       {[3]float64{11, 11, 11}, [3]int{18, 1, 1}, 0.9},
		"small files, and all wait for one": {[3]float64{900, 900, 900}, [3]int{18, 1, 1}, 0.95},
	} {
		t.Run(name, func(t *testing.T) {
			f := &full{programs: newPrograms(), rates: test.rates}
			all := 0.0
			for path, waiting := range test.waiting {
				all += test.rates[path]
				for range waiting {
					f.join(path, f.now)
				}
			}
			require.Greater(t, f.run(time.Minute), test.least*all)
		})
	}
}

func TestWhatAnEarlierAgentFoundIsTriedAgain(t *testing.T) {
	n := newPrograms()
	n.known.On[slowOne].Slow = true
	n.pair = adopt(n.now, &n.known)
	require.Empty(t, n.finds(firstRest, on(20*time.Millisecond, 20*time.Millisecond)))
	require.Equal(t, []verdict{{path: slowOne}}, n.finds(6*time.Second, on(20*time.Millisecond, 20*time.Millisecond)))
}

func TestWhatTheProgramsForgotIsForgotten(t *testing.T) {
	n := slowNode(t, 400*time.Millisecond)
	for range 4 { // until those have ended that began there before
		n.pass()
	}
	n.known.On[slowOne].Slow = false
	n.pass()
	require.False(t, n.pair.paths[slowOne].slow)
	less := n.known
	less.On[0].Begun--
	require.True(t, n.pair.isAnother(&less))
	require.False(t, n.pair.isAnother(&n.known))
}
