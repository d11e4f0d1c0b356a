// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

func TestARunWaitsForThePauseAfterTheLastOne(t *testing.T) {
	d := newDebouncer(0, time.Minute)
	require.Zero(t, d.rest(time.Now()), "before the first run")
	d.measure(time.Now())
	require.Greater(t, d.rest(time.Now()), 50*time.Second)
	require.LessOrEqual(t, d.rest(time.Now()), time.Minute)
	require.Zero(t, d.rest(time.Now().Add(time.Minute)), "after the pause")
	require.Zero(t, newDebouncer(time.Minute, 0).rest(time.Now()), "without a pause")
}

// A pod that comes alone is compiled at once, and pods that come together are compiled
// together: a run for each of them would take the API server's time from all.
func TestManyPodsThatComeTogetherAreCompiledInFewRuns(t *testing.T) {
	k := newCluster(t)
	k.startController(apiServer)
	k.node("n1", nil)
	k.path("blue")
	k.policy("all", nil)
	k.pod("first", "n1", "10.244.1.250", nil)
	k.waitForPods("n1", "first")

	before, start := runs(t), time.Now()
	names := []string{"first"}
	for i := range 40 {
		name := fmt.Sprintf("pod-%02d", i)
		k.pod(name, "n1", fmt.Sprintf("10.244.1.%d", i+1), nil)
		names = append(names, name)
	}
	k.waitForPods("n1", names...)
	took, ran := time.Since(start), runs(t)-before
	t.Logf("%d runs in %v", ran, took)
	require.LessOrEqual(t, ran, 2+uint64(took/DefaultPause))
}

func runs(t *testing.T) uint64 {
	t.Helper()
	var metric dto.Metric
	require.NoError(t, compileDuration.Write(&metric))
	return metric.GetHistogram().GetSampleCount()
}

// stepped is the time that a clock shows which was set meanwhile: the monotonic clock goes on.
func stepped(t *testing.T, now time.Time, by time.Duration) time.Time {
	t.Helper()
	set := now
	wall := (*uint64)(unsafe.Pointer(&set)) // seconds above 30 bits of nanoseconds, see package time
	*wall += uint64(by/time.Second) << 30
	require.Zero(t, set.Sub(now), "by the monotonic clock")
	require.Equal(t, by, set.Round(0).Sub(now.Round(0)), "by the wall clock")
	return set
}

// Plans would wait for as long as the clock was set back.
func TestAClockThatIsSetHoldsUpNoRun(t *testing.T) {
	d, ended := newDebouncer(0, time.Minute), time.Now()
	d.measure(ended)
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		now := stepped(t, time.Now(), by)
		require.LessOrEqual(t, d.rest(now), time.Minute)
		require.Greater(t, d.rest(now), 50*time.Second)
		require.Zero(t, d.rest(now.Add(time.Minute)), "after the pause")
	}
}
