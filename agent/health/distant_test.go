// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

func (s *simulation) distant(path string) bool {
	view := s.view()
	return view.Sample("peer1", path).Distant
}

func TestAPathWithAMuchLongerRoundTripIsDistant(t *testing.T) {
	for name, test := range map[string]struct {
		near, far time.Duration
		distant   bool
	}{
		"ten times as long":              {ms, 10 * ms, true},
		"twice and a bit as long":        {ms, 2200 * time.Microsecond, true},
		"not twice as long":              {ms, 1900 * time.Microsecond, false},
		"many times, but hardly longer":  {20 * time.Microsecond, 200 * time.Microsecond, false},
		"many times, and notably longer": {50 * time.Microsecond, 500 * time.Microsecond, true},
		"as long":                        {10 * ms, 10 * ms, false},
	} {
		for pace, active := range map[string]bool{"to a peer that flows go to": true, "to another": false} {
			t.Run(name+" "+pace, func(t *testing.T) {
				s := simulate(usual, 1, active, "blue", "green", "red")
				s.wire("blue").rtt, s.wire("green").rtt, s.wire("red").rtt = test.near, test.near, test.far
				s.run(15 * time.Second)
				require.Equal(t, []bool{false, false, test.distant}, []bool{s.distant("blue"), s.distant("green"), s.distant("red")})
			})
		}
	}
}

func TestAPathIsDistantSoonAfterItsFirstProbes(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "red")
	s.wire("red").rtt = 10 * ms
	s.run(time.Second)
	view := s.view()
	require.False(t, view.Sample("peer1", "red").DistanceKnown)
	require.Equal(t, map[string]map[string]bool{"peer1": {"blue": false}}, view.Distant())
	s.run(time.Second)
	view = s.view()
	require.Equal(t, map[string]map[string]bool{"peer1": {"blue": false, "red": true}}, view.Distant())
	require.True(t, s.distant("red"))
	require.False(t, s.distant("blue"))
}

func TestAQueueMakesNoPathDistantWhileProbesNowAndThenFindItShort(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "red")
	for range 20 {
		s.wire("red").rtt = ms
		s.run(600 * ms)
		s.wire("red").rtt = 30 * ms
		s.run(9 * time.Second)
		require.False(t, s.distant("red"))
	}
}

func TestAPathThatOthersFillIsDistantUntilTheyAreGone(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "red")
	s.run(time.Minute)
	s.wire("red").rtt = 10 * ms
	s.run(9 * time.Second)
	require.False(t, s.distant("red"), "its queue may be empty in a moment")
	s.run(18 * time.Second)
	require.True(t, s.distant("red"))
	for range 10 {
		s.wire("red").rtt = 500 * time.Microsecond
		s.run(100 * ms)
		s.wire("red").rtt = 10 * ms
		s.run(2 * time.Second)
		require.True(t, s.distant("red"), "its queue was empty for a moment")
	}
	s.wire("red").rtt = ms
	s.run(time.Second)
	require.False(t, s.distant("red"))
}

func TestAPathThatHasJustBecomeDistantIsNoLongerWhenItIsShortAgain(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "red")
	s.wire("red").rtt = 10 * ms
	s.run(4 * time.Second)
	require.True(t, s.distant("red"))
	s.wire("red").rtt = ms
	s.run(100 * ms)
	require.False(t, s.distant("red"))
}

// What flows leave a path for being full may be all that filled it.
func TestAPathWhoseQueueGoesWithWhatRestsElsewhereIsLeftAloneForLongerEachTime(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "red")
	var times []time.Duration
	was := false
	for range 10 * 60 * 20 {
		distant := s.distant("red")
		s.wire("red").rtt = 30 * ms
		if distant {
			s.wire("red").rtt = ms
		}
		if distant && !was {
			times = append(times, s.now)
		}
		was = distant
		s.run(50 * ms)
	}
	require.Greater(t, len(times), 4)
	require.Less(t, len(times), 9)
	for i := 2; i < len(times); i++ {
		require.Greater(t, times[i]-times[i-1], times[i-1]-times[i-2]-time.Second)
	}
	require.Greater(t, times[4]-times[3], 35*time.Second)
	s.wire("red").rtt = 30 * ms
	s.run(longestNear)
	require.True(t, s.distant("red"), "now it is others' queue")
	s.wire("red").rtt = ms
	s.run(time.Second)
	require.False(t, s.distant("red"))
	s.wire("red").rtt = 30 * ms
	s.run(22 * time.Second)
	require.True(t, s.distant("red"), "which comes back when they do")
}

// Where the near paths are full, more is gained with the distant one.
func TestAPathIsDistantNoLongerWhileTheOthersAreAsLongByTheirQueues(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "green", "red")
	s.wire("red").rtt = 10 * ms
	s.run(10 * time.Second)
	require.True(t, s.distant("red"))
	s.wire("blue").rtt, s.wire("green").rtt = 12*ms, 9*ms
	s.run(time.Second)
	require.False(t, s.distant("red"))
	s.wire("blue").rtt, s.wire("green").rtt = ms, ms
	s.run(3 * time.Second)
	require.False(t, s.distant("red"), "it does not change its mind with each queue")
	s.run(4 * time.Second)
	require.True(t, s.distant("red"))
}

func TestADeadPathIsNotDistant(t *testing.T) {
	s := simulate(usual, 1, true, "blue", "red")
	s.wire("red").rtt = 10 * ms
	s.run(10 * time.Second)
	s.wire("blue").blocked = true
	s.run(2 * time.Second)
	require.False(t, s.distant("red"), "there is no other path")
	s.wire("blue").blocked = false
	s.run(5 * time.Second)
	require.True(t, s.distant("red"))
}

// Every agent watches every node.
func TestTheStatusTellsOfDistancesOnceAMinute(t *testing.T) {
	monitor, err := NewMonitor(MonitorOptions{Notify: func() {}, Log: testr.New(t)})
	require.NoError(t, err)
	defer func() { require.NoError(t, monitor.Close()) }()
	s := simulate(usual, 1, true, "blue", "red")
	s.run(2 * time.Second)
	monitor.prober.tracker = s.tracker
	began := time.Now()
	require.True(t, monitor.show(began))
	s.targets[pair{"peer1", "red"}].distance = distance{distant: true, known: true}
	require.False(t, monitor.show(began.Add(50*time.Second)))
	require.True(t, monitor.show(began.Add(61*time.Second)))
	path := v1alpha1.NodePath{Name: "red"}
	monitor.Describe(&path)
	require.Equal(t, []string{"peer1"}, path.DistantTo)
}
