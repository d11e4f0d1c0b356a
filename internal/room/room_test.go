// SPDX-License-Identifier: Apache-2.0

package room_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/internal/room"
)

// fill takes what the owners get.
func fill(r *room.Room, owners ...string) (places int) {
	for r.Take(owners...) {
		places++
	}
	return places
}

func TestWhoComesLastFindsRoom(t *testing.T) {
	r := room.New(1200)
	require.Equal(t, 400, fill(r, "a", "a/1"), "one pod alone gets a third")
	require.Equal(t, 134, fill(r, "a", "a/2"), "the tenant's second pod shares what is left of the tenant's part")
	require.Equal(t, 222, fill(r, "b", "b/1"), "another tenant's pod gets as if the first tenant had but its part")
	for _, tenant := range []string{"c", "d", "e", "f"} {
		require.Positive(t, fill(r, tenant, tenant+"/1"), "every further tenant finds some room")
	}
}

func TestWhatIsGivenBackIsThereForOthers(t *testing.T) {
	r := room.New(90)
	taken := fill(r, "a")
	require.Equal(t, 45, taken)
	r.Give(taken, "a")
	require.Equal(t, 0, r.Held("a"))
	require.Equal(t, 45, fill(r, "b"))
}

func TestLeftTellsWhatCanBeTaken(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := room.New(rapid.IntRange(0, 300).Draw(t, "size"))
		owners := []string{"a", "a/1", "a/1/x"}[:rapid.IntRange(0, 3).Draw(t, "levels")]
		for range rapid.IntRange(0, 200).Draw(t, "others") {
			r.Take(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "other"))
		}
		left := r.Left(owners...)
		if got := fill(r, owners...); got != left {
			t.Fatalf("%d places could be taken, and Left said %d", got, left)
		}
	})
}
