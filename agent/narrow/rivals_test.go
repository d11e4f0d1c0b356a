// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRivalsAreThePathsOfWhichNothingShowsThatTheyAreSlow(t *testing.T) {
	const queue, unbelievable = 8000, 2000.0
	type seen struct {
		seenPath
		rate float64 // in TCP's word
	}
	chosen := seen{seenPath{peak: 12}, unbelievable}
	slow := seen{seenPath{peak: 2, held: queue}, 2}
	for name, test := range map[string]struct {
		other seen
		want  []rival
	}{
		"TCP knows no rate":             {seen{seenPath{peak: 10}, unbelievable}, []rival{{1, math.Inf(1)}}},
		"TCP knows its rate":            {seen{seenPath{peak: 10}, 50}, []rival{{1, 50 * mbit}}},
		"it has shown what it gives":    {seen{seenPath{peak: 11}, unbelievable}, []rival{{1, 20 * mbit}}},
		"it loses packets":              {seen{seenPath{peak: 13}, unbelievable}, nil},
		"it moves much less":            {seen{seenPath{peak: 2}, unbelievable}, nil},
		"much waits there":              {seen{seenPath{peak: 10, held: queue / 2}, unbelievable}, nil},
		"it is the slow one, in bursts": {seen{seenPath{peak: 4, held: queue}, unbelievable}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			all := []seen{chosen, test.other, slow}
			c, subflows := connectionOver(10, chosen.seenPath, test.other.seenPath, slow.seenPath)
			for i, s := range subflows {
				c.subflows[s.ends].rates = []float64{all[i].rate * mbit}
			}
			now := time.Unix(1000, 0)
			switch other := c.subflows[subflows[1].ends]; name {
			case "it has shown what it gives":
				c.alone = map[uint8]shown{1: {20 * mbit, now.Add(-time.Second)}}
			case "it loses packets":
				other.bytes, other.lost = 1000, 100
				c.subflows[subflows[0].ends].bytes = 1000
			}
			require.Equal(t, test.want, c.rivalsOf(now, 0, subflows))
		})
	}
}

// sharing is a connection whose subflows share path 0 and get so much there, in Mbit/s, with two rivals of
// which path 1 promises more.
func sharing(rate float64, now time.Time) *connection {
	c := &connection{arrangement: arrangement{shared: true, plainly: true}, rivals: []rival{{2, 30 * mbit}, {1, 95 * mbit}}, looks: recent, widest: 64 << 10}
	c.begun, c.again, c.rest = now.Add(-time.Second), now.Add(restTogether), restTogether
	for range recent {
		c.rate.add(rate*mbit, recent)
		c.limits.add(sight{full: true})
	}
	return c
}

func TestARivalIsTriedOnceAndKeptWhereItGivesMore(t *testing.T) {
	for name, test := range map[string]struct {
		gives float64
		path  uint8
	}{
		"more":          {90, 1},
		"about as much": {50, 0},
		"less":          {5, 0},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			c, earlier := sharing(47, now), outcomes{{}: {path: 0, window: 64 << 10, until: now.Add(time.Minute)}}
			require.Equal(t, share, c.lookTogether(now, nil))
			require.True(t, c.isTrying(true))
			require.Equal(t, uint8(1), c.path)
			for range recent {
				c.rate.add(test.gives*mbit, recent)
			}
			require.True(t, c.hasSeenEnough())
			c.judge(now.Add(time.Second))
			earlier.learn(now, addresses{}, true, c)
			require.True(t, c.hasSettled(true))
			require.Equal(t, test.path, c.path)
			require.Equal(t, test.path, earlier[addresses{}].path, "where the next connection begins")
			c.looks, c.rate = recent, average{20 * mbit, recent}
			next, _ := c.toRival()
			require.NotEqual(t, uint8(1), next.path, "it is tried once")
		})
	}
}

func TestARivalIsNotTriedWhereAnotherThingHoldsTheConnectionBack(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, change := range map[string]func(*connection){
		"the window is not full":          func(c *connection) { c.limits = limits{looks: make([]sight, few)} },
		"it has shared the path just now": func(c *connection) { c.looks = recent - 1 },
		"the rivals promise no more":      func(c *connection) { c.rate = average{90 * mbit, recent} },
		"there are no rivals":             func(c *connection) { c.rivals = nil },
		"some paths are kept":             func(c *connection) { c.keeps = 1 << 2 },
	} {
		t.Run(name, func(t *testing.T) {
			c := sharing(47, now)
			change(c)
			_, found := c.toRival()
			require.False(t, found)
		})
	}
}

func TestARivalMustGiveMoreAlsoWhereTheOtherPathsLosePackets(t *testing.T) {
	now := time.Unix(1000, 0)
	c := sharing(47, now)
	c.losses = true
	require.Equal(t, share, c.lookTogether(now, nil))
	require.InDelta(t, gain, c.needed(), 0)
	c.other.keeps = 1 << 2
	require.InDelta(t, gainLossless, c.needed(), 0, "where some paths were kept, their losses are still there")
}
