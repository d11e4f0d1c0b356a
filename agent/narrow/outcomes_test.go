// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// after is a connection that begins when another one has gone on for so long.
func after(s *simulation, duration time.Duration) *simulation {
	s.earlier = outcomes{}
	s.runs(duration)
	return s.next(s.network)
}

// next is a connection between the same addresses that begins now.
func (s *simulation) next(of network) *simulation {
	next := simulate(of)
	next.now, next.earlier = s.now, s.earlier
	s.earlier.tell(s.now, addresses{}, next.connection, next.subflows())
	return next
}

func TestAConnectionSharesAPathFromItsFirstLookOnWhereTheOneBeforeItPlainlyGainedByThat(t *testing.T) {
	for name, of := range map[string]network{"the other path is slow": narrow, "the other path loses packets": losing} {
		t.Run(name, func(t *testing.T) {
			next := after(simulate(of), 3*time.Second)
			require.Equal(t, []order{share}, next.runs(tick))
			require.True(t, next.hasSettled(true))
			require.Equal(t, uint8(goodPath), next.path)
			require.Empty(t, next.runs(restTogether-2*tick), "it stays there")
			require.Equal(t, []order{part, share}, next.runs(3*time.Second), "and sees for itself then")
		})
	}
}

func TestAConnectionLeavesThePathOfTheOneBeforeItSoonWhereThatGivesMuchLessNow(t *testing.T) {
	next := after(simulate(narrow), 3*time.Second)
	next.joined[goodPath], next.apart[goodPath], next.rates[goodPath] = 4*mbit, 4*mbit, 4*mbit
	later := next.next(next.network)
	require.Equal(t, []order{share, part}, next.runs(restTogether/2))
	require.True(t, next.hasSettled(false))
	require.Empty(t, later.next(next.network).runs(3*tick), "and those after it begin by their own paths")
}

func TestAConnectionBeginsByItsOwnPathsWhere(t *testing.T) {
	for name, next := range map[string]func() *simulation{
		"there was none before it": func() *simulation { return after(simulate(narrow), 0) },
		"the one before it gained little by a shared path": func() *simulation {
			little := narrow
			little.apart = [2]float64{40 * mbit, 15 * mbit}
			little.joined[goodPath] = 80 * mbit
			return after(simulate(little), 4*time.Second)
		},
		"its window is wider": func() *simulation {
			wide := narrow
			wide.receiver = 2 * narrow.receiver
			return after(simulate(narrow), 3*time.Second).next(wide)
		},
		"the one before it was minutes ago": func() *simulation {
			next := after(simulate(narrow), 3*time.Second)
			next.now = next.now.Add(valid)
			return next.next(narrow)
		},
		"the one before it got more by several paths in the end": func() *simulation {
			s := simulate(narrow)
			s.earlier = outcomes{}
			s.runs(3 * time.Second)
			s.apart = [2]float64{90 * mbit, 90 * mbit}
			s.runs(restTogether)
			return s.next(narrow)
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, next().runs(3*tick))
		})
	}
}

func TestAConnectionThatDoesNotHaveThePathOfTheOneBeforeItBeginsByItsOwnPaths(t *testing.T) {
	s := after(simulate(narrow), 3*time.Second)
	subflows := s.subflows()
	subflows[goodPath].path = slowPath + 1
	begins := &connection{}
	s.earlier.tell(s.now, addresses{}, begins, subflows)
	require.True(t, begins.hasSettled(false))
	s.earlier.tell(s.now, addresses{}, begins, s.subflows())
	require.True(t, begins.hasSettled(true), "until one of its subflows sends much there")
}

func TestAConnectionThatGoesOnIsNotToldWhatAnotherOneFoundOut(t *testing.T) {
	s := after(simulate(narrow), 3*time.Second)
	goesOn := &connection{looks: long}
	s.earlier.tell(s.now, addresses{}, goesOn, s.subflows())
	require.True(t, goesOn.hasSettled(false))
}

func TestNoMoreThanSoManyOutcomesAreRemembered(t *testing.T) {
	now, l := time.Unix(1000, 0), outcomes{}
	c := &connection{arrangement: arrangement{shared: true, plainly: true}}
	for i := range mostOutcomes + 100 {
		of := addresses{local: netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})}
		l.learn(now, of, true, c)
		require.Contains(t, l, of)
	}
	require.Len(t, l, mostOutcomes)
}
