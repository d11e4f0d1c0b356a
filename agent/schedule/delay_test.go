// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// thin is a stream on two subflows whose round-trip times change.
type thin struct {
	stream
	now time.Time
	of  []candidate
}

func newThin() *thin {
	end := func(port uint16) Ends { return Ends{Local: netip.AddrPortFrom(netip.Addr{}, port)} }
	return &thin{now: time.Unix(1000, 0), of: []candidate{
		{Ends: end(1), rtt: 10 * time.Millisecond, first: true}, {Ends: end(2), rtt: 30 * time.Millisecond},
	}}
}

// look makes a decision each 100 ms for so long, in which the used subflow's data is
// acknowledged, and returns the last one.
func (s *thin) look(long time.Duration) (used int) {
	for range long / interval {
		s.now = s.now.Add(interval)
		used = s.choose(s.now, 100*time.Millisecond, s.of)
		s.of[used].acked += 100
	}
	return used
}

func TestAThinStreamStaysOnItsFirstSubflowUpToTheThreshold(t *testing.T) {
	s := newThin()
	require.Equal(t, 0, s.look(time.Second))
	s.of[0].rtt = 100 * time.Millisecond
	require.Equal(t, 0, s.look(time.Second), "also where the other one is faster")
}

func TestAThinStreamMovesAboveTheThresholdAndComesBack(t *testing.T) {
	s := newThin()
	s.of[0].rtt = 150 * time.Millisecond
	require.Equal(t, 1, s.look(interval))
	require.Equal(t, 1, s.look(firstWait-interval))
	require.Equal(t, 0, s.look(interval), "it is tried again")
	require.Equal(t, 0, s.look((fresh-1)*interval), "what its round-trip time was is no reason")
	s.of[0].rtt = 20 * time.Millisecond
	require.Equal(t, 0, s.look(time.Minute))
}

func TestTriesInVainBecomeRareAndLaterOnesAreEarlyAgain(t *testing.T) {
	s := newThin()
	s.of[0].rtt = 150 * time.Millisecond
	tries, before := 0, 1
	for range 10 * time.Minute / interval {
		used := s.look(interval)
		if used == 0 && before == 1 {
			tries++
		}
		before = used
	}
	if tries < 5 || tries > 12 {
		t.Errorf("in 10 minutes it was tried %d times", tries)
	}
	s.of[0].rtt = 20 * time.Millisecond
	require.Equal(t, 0, s.look(10*time.Minute))
	s.of[0].rtt = 150 * time.Millisecond
	require.Equal(t, 1, s.look(interval))
	require.Equal(t, firstWait, s.wait)
}

func TestAThinStreamStaysWhereNoSubflowIsFaster(t *testing.T) {
	s := newThin()
	s.of[0].rtt, s.of[1].rtt = 150*time.Millisecond, 200*time.Millisecond
	require.Equal(t, 0, s.look(time.Minute))
}

func TestAThinStreamDoesNotTakeWhatItsPeerMadeABackup(t *testing.T) {
	s := newThin()
	s.of[0].rtt, s.of[1].asked = 150*time.Millisecond, true
	require.Equal(t, 0, s.look(time.Minute))
	s.of[0].asked, s.of[1].asked = true, false
	require.Equal(t, 1, s.look(time.Second), "also where it began there")
}

func TestAThinStreamWhoseSubflowEndedGoesOnWithAnother(t *testing.T) {
	s := newThin()
	s.of[0].rtt = 150 * time.Millisecond
	require.Equal(t, 1, s.look(time.Second))
	s.of = s.of[:1]
	require.Equal(t, 0, s.look(time.Second))
	s = newThin()
	s.of = s.of[1:]
	require.Equal(t, 0, s.look(time.Second))
}
