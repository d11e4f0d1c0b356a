// SPDX-License-Identifier: Apache-2.0

package optiontest

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

const ethernet = 14

// pacer tells the 64ths of a credit to which a sender paces.
type pacer struct {
	objects PaceObjects
}

func loadPacer(t *testing.T) *pacer {
	t.Helper()
	p := &pacer{}
	require.NoError(t, LoadPaceObjects(&p.objects, nil))
	t.Cleanup(func() { require.NoError(t, p.objects.Close()) })
	return p
}

func (p *pacer) share(t *testing.T, rate uint64, segment, roundTrip, least uint32) uint32 {
	t.Helper()
	packet := make([]byte, ethernet)
	packet = binary.NativeEndian.AppendUint64(packet, rate)
	for _, word := range []uint32{segment, roundTrip, least, 0} {
		packet = binary.NativeEndian.AppendUint32(packet, word)
	}
	share, _, err := p.objects.PaceCredit.Test(packet)
	require.NoError(t, err)
	return share
}

const (
	mbit  = 1_000_000 / 8
	whole = uint32(64)
)

func TestASenderGoesOverItsCreditWhileTheQueueIsShortAndKeepsAQuarterOfItAtLeastWhereItIsLong(t *testing.T) {
	p := loadPacer(t)
	for name, c := range map[string]struct {
		rate             uint64
		segment          uint32
		roundTrip, least uint32
		want             uint32
	}{
		"one of eight, and no queue":                              {12 * mbit, 1500, 100, 100, 76},
		"one of eight, and half of a short queue":                 {12 * mbit, 1500, 1600, 100, 70},
		"one of eight, and a queue that is long enough":           {12 * mbit, 1500, 3200, 100, 64},
		"one of 32, and no queue":                                 {3 * mbit, 1500, 100, 100, 68},
		"one of 32, and a millisecond of queue":                   {3 * mbit, 1500, 1100, 100, 64},
		"one alone, and no queue":                                 {95 * mbit, 1500, 100, 100, 79},
		"one at 10 Gbit/s, and no queue":                          {10_000 * mbit, 1500, 100, 100, 64},
		"one of eight at 10 Gbit/s, and no queue":                 {1250 * mbit, 1500, 100, 100, 65},
		"one of eight at 10 Gbit/s, and 300 us":                   {1250 * mbit, 1500, 400, 100, 64},
		"4 ms of queue":                                           {12 * mbit, 1500, 4100, 100, 64},
		"8 ms of queue":                                           {12 * mbit, 1500, 8100, 100, 32},
		"6 ms of queue":                                           {12 * mbit, 1500, 6100, 100, 48},
		"10 ms of queue":                                          {12 * mbit, 1500, 10_100, 100, 16},
		"one that began at 3 ms of queue, of which most are gone": {12 * mbit, 1500, 3100, 3000, 65},
		"one that began at 3 ms of queue, with as much":           {12 * mbit, 1500, 6000, 3000, 64},
		"one that is far away, and no queue":                      {12 * mbit, 1500, 20_000, 20_000, 64},
		"one that is far away, and 8 ms of queue":                 {12 * mbit, 1500, 28_000, 20_000, 32},
		"a second of queue":                                       {12 * mbit, 1500, 1_000_100, 100, 16},
	} {
		if got := p.share(t, c.rate, c.segment, c.roundTrip, c.least); got != c.want {
			t.Errorf("%s: %d of 64", name, got)
		}
	}
}

func TestRoundTripsThatNobodyKnowsLeaveACreditAsItIs(t *testing.T) {
	p := loadPacer(t)
	for _, rate := range []uint64{0, 8000, 12 * mbit} {
		require.Equal(t, whole, p.share(t, rate, 1500, 0, 0))
		require.Equal(t, whole, p.share(t, rate, 1500, 500, 0))
		require.Equal(t, whole, p.share(t, rate, 1500, 0, 500))
		require.Equal(t, whole, p.share(t, rate, 1500, 100, 500), "less than the least: the clock or the kernel errs")
		require.Equal(t, whole, p.share(t, rate, 1500, 500, math.MaxUint32), "what the kernel has before the first one")
	}
}

func TestNoNumbersHaveASenderLeaveTheBoundsAndALongerQueueNeverHasItGoFaster(t *testing.T) {
	p := loadPacer(t)
	extremes := []uint32{1, 99, 1000, 100_000, math.MaxUint32}
	for _, rate := range []uint64{0, 1, 8000, 12 * mbit, 1 << 40, math.MaxUint64} {
		for _, segment := range append(extremes, 0) {
			for _, least := range extremes {
				last := uint32(80)
				for queue := uint32(0); queue < 20_000 && least+queue >= least; queue += 500 {
					got := p.share(t, rate, segment, least+queue, least)
					if got < whole/4 || got > last {
						t.Fatalf("rate %d, segment %d, round trip %d + %d us: %d after %d", rate, segment, least, queue, got, last)
					}
					last = got
				}
			}
		}
	}
}

// next tells the 64ths of a credit that follow the last ones, of another credit, where this many are right.
func (p *pacer) next(t *testing.T, last uint32, lastRate, rate uint64, right uint32) uint32 {
	t.Helper()
	packet := make([]byte, ethernet)
	for _, long := range []uint64{lastRate, rate} {
		packet = binary.NativeEndian.AppendUint64(packet, long)
	}
	for _, word := range []uint32{last, right} {
		packet = binary.NativeEndian.AppendUint32(packet, word)
	}
	share, _, err := p.objects.PaceNext.Test(packet)
	require.NoError(t, err)
	return share
}

func TestASenderThatSlowedDownGoesFasterStepByStepAndNotForAGreaterCredit(t *testing.T) {
	p := loadPacer(t)
	for name, c := range map[string]struct {
		last           uint32
		lastRate, rate uint64
		right          uint32
		want           uint32
	}{
		"the first credit":                                {0, 0, 12 * mbit, 64, 64},
		"the same credit, and the queue is shorter":       {32, 12 * mbit, 12 * mbit, 60, 40},
		"the same credit, and the queue is not long":      {24, 12 * mbit, 12 * mbit, 64, 48},
		"the same credit, and a little shorter":           {32, 12 * mbit, 12 * mbit, 34, 34},
		"the same credit, and the queue is short":         {32, 12 * mbit, 12 * mbit, 70, 70},
		"the same credit, and the queue is longer":        {32, 12 * mbit, 12 * mbit, 16, 16},
		"the same credit, and a queue after none":         {76, 12 * mbit, 12 * mbit, 16, 38},
		"twice the credit, and the same queue":            {40, 12 * mbit, 24 * mbit, 40, 25},
		"twice the credit, and a short queue":             {70, 12 * mbit, 24 * mbit, 70, 70},
		"twice the credit, and a queue that became short": {40, 12 * mbit, 24 * mbit, 70, 70},
		"half of the credit, and the same queue":          {40, 24 * mbit, 12 * mbit, 40, 40},
		"a thousand times the credit":                     {40, mbit, 1000 * mbit, 60, 2},
		"a credit of nothing":                             {40, mbit, 0, 16, 20},
	} {
		if got := p.next(t, c.last, c.lastRate, c.rate, c.right); got != c.want {
			t.Errorf("%s: %d of 64", name, got)
		}
	}
}
