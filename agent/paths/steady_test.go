// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

// watched is a NIC that is looked at again and again.
type watched struct {
	t      *testing.T
	steady steadiness
	now    time.Time
	last   Resolution
}

// is looks after some time whether the path is used.
func (w *watched) is(after time.Duration, up bool) bool {
	w.t.Helper()
	w.now = w.now.Add(after)
	nic := ready("eth0", "192.0.2.1/24")
	if !up {
		nic.flags = 0
	}
	w.last = resolve(Query{Paths: []v1alpha1.PlanPath{byName("blue", "eth0")}}, fakeCandidates(w.t, []fakeNIC{nic}), nil, familiesSeen{})
	w.steady.hold(&w.last, w.now)
	return w.last.Paths[0].Usable
}

func newWatched(t *testing.T) *watched {
	t.Helper()
	w := &watched{t: t, steady: steadiness{}, now: time.Now()}
	require.True(t, w.is(0, true), "at first")
	return w
}

func TestANICThatFlapsIsUsedAgainOnceItIsSteady(t *testing.T) {
	w := newWatched(t)
	for range flaps - 1 {
		require.False(t, w.is(50*time.Millisecond, false))
		require.True(t, w.is(50*time.Millisecond, true), "a few times it is used at once")
	}
	for range 100 {
		require.False(t, w.is(50*time.Millisecond, false))
		require.False(t, w.is(50*time.Millisecond, true))
		require.Equal(t, steadyFor, w.last.Again)
	}
	require.Equal(t, "eth0 went down 4 times within 6s: it is used again once it has been up for 3s", w.last.Paths[0].Message)
	require.False(t, w.is(steadyFor-time.Millisecond, true))
	require.Equal(t, time.Millisecond, w.last.Again)
	require.True(t, w.is(time.Millisecond, true))
	require.Zero(t, w.last.Again)
	require.False(t, w.is(time.Second, false))
	require.True(t, w.is(time.Second, true), "then it begins anew")
}

func TestANICThatGoesDownNowAndThenIsUsedAtOnce(t *testing.T) {
	w := newWatched(t)
	for range 100 {
		require.False(t, w.is(time.Second, false))
		require.True(t, w.is(2*time.Second, true))
	}
}

func TestWhatIsKnownOfAPathThatIsGoneIsForgotten(t *testing.T) {
	w := newWatched(t)
	w.steady.hold(&Resolution{}, w.now)
	require.Empty(t, w.steady)
}
