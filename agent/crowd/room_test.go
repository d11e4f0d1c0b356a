// SPDX-License-Identifier: Apache-2.0

package crowd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestThereIsRoomForSoManyAsSomebodySays(t *testing.T) {
	var nobody *Rooms
	require.True(t, nobody.Of("a").Take())
	require.False(t, nobody.Of("a").IsBound())
	var rooms Rooms
	a := rooms.Of("a")
	require.True(t, a.Take(), "nobody has said anything")
	a.Set(2, time.Now().Add(time.Hour))
	require.True(t, rooms.Of("b").Take(), "another tenant is not concerned")
	require.True(t, a.Take())
	require.True(t, rooms.Of("a").Take())
	require.False(t, a.Take(), "both places are taken")
	require.True(t, a.IsBound())
	require.Equal(t, []string{"a"}, rooms.bound())
	a.Free()
	require.True(t, a.Take())
	require.False(t, a.IsBound())
	rooms.keep(map[string]bool{"b": true})
	require.NotSame(t, a, rooms.Of("a"))
}

func TestWhereNobodySaysAnythingAnyMoreOneIsLetGoAfterTheOther(t *testing.T) {
	var room Room
	room.Set(0, time.Now().Add(-time.Second))
	require.True(t, room.Take(), "what was said is too old")
	require.False(t, room.Take(), "not all at once")
	require.True(t, room.IsBound())
	require.Eventually(t, room.Take, time.Minute, 10*time.Millisecond)
}

func TestFewOfManyThatWaitMayHaveASubflowWithoutAPlace(t *testing.T) {
	var nobody *Room
	require.False(t, nobody.Rescue(), "nobody waits")
	var room Room
	room.Set(0, time.Now().Add(time.Hour))
	room.Wait(3)
	require.True(t, room.Rescue())
	require.False(t, room.Rescue())
	room.Wait(100)
	rescued := 1
	for room.MayRescue() {
		require.True(t, room.Rescue())
		rescued++
	}
	require.Equal(t, 103/rescuedOf, rescued)
	room.Rescued(1)
	require.True(t, room.Rescue())
	require.False(t, room.Rescue())
	for room.Wait(100_000); room.Rescue(); rescued++ {
	}
	require.Equal(t, mostRescued, rescued)
}
