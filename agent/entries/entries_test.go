// SPDX-License-Identifier: Apache-2.0

package entries

import (
	"maps"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
)

type place struct{ Number, Index uint32 }

// newMap is a map with the entries 0 to count-1, each with twice its key.
func newMap(t *testing.T, count, room uint32) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "places", Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: room})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	for i := range count {
		require.NoError(t, m.Put(&place{Number: i, Index: 1}, 2*i))
	}
	return m
}

func content(t *testing.T, m *ebpf.Map) map[uint32]uint32 {
	t.Helper()
	all := map[uint32]uint32{}
	require.NoError(t, Each(m, func(key *place, value *uint32) { all[key.Number] = *value }))
	return all
}

func TestEachEntryIsVisitedOnce(t *testing.T) {
	const count = 3 * batch
	visits := map[place]int{}
	m := newMap(t, count, count)
	require.NoError(t, Each(m, func(key *place, value *uint32) {
		require.Equal(t, 2*key.Number, *value)
		visits[*key]++
	}))
	require.Len(t, visits, count)
	require.Equal(t, count, len(slices.DeleteFunc(slices.Collect(maps.Values(visits)), func(n int) bool { return n != 1 })))
}

func TestAnEmptyMapHasNoEntries(t *testing.T) {
	m := newMap(t, 0, 8)
	require.Empty(t, content(t, m))
	keys, err := Keys[place](m)
	require.NoError(t, err)
	require.Empty(t, keys)
	require.NoError(t, Forget(m, func(place) bool { return true }))
}

func TestKeysAreThoseOfTheMap(t *testing.T) {
	keys, err := Keys[place](newMap(t, 3, 8))
	require.NoError(t, err)
	require.ElementsMatch(t, []place{{0, 1}, {1, 1}, {2, 1}}, keys)
}

func TestWhatIsToGoIsForgotten(t *testing.T) {
	m := newMap(t, 4, 8)
	require.NoError(t, Forget(m, func(key place) bool { return key.Number%2 == 0 }))
	require.Equal(t, map[uint32]uint32{1: 2, 3: 6}, content(t, m))
}

func TestWhatIsNotThereNeedNotBeDeleted(t *testing.T) {
	m := newMap(t, 2, 8)
	require.NoError(t, Delete(m, place{9, 9}, place{0, 1}))
	require.Equal(t, map[uint32]uint32{1: 2}, content(t, m))
}

func TestAMapIsBroughtToWhatIsWanted(t *testing.T) {
	m := newMap(t, 3, 4)
	wanted := map[place]uint32{{1, 1}: 2, {2, 1}: 77, {5, 1}: 5}
	require.NoError(t, Replace(m, wanted, "places"))
	require.Equal(t, map[uint32]uint32{1: 2, 2: 77, 5: 5}, content(t, m))
}

func TestWhatFindsNoRoomIsSaidAndTheRestIsWritten(t *testing.T) {
	m := newMap(t, 2, 2)
	err := Replace(m, map[place]uint32{{1, 1}: 3, {7, 1}: 7}, "places of pods")
	require.ErrorContains(t, err, "writing places of pods: ")
	require.Equal(t, map[uint32]uint32{1: 3}, content(t, m), "what is not wanted made room for the next time")
	require.NoError(t, Replace(m, map[place]uint32{{1, 1}: 3, {7, 1}: 7}, "places of pods"))
}

func TestAMapThatIsClosedCannotBeRead(t *testing.T) {
	m := newMap(t, 1, 2)
	require.NoError(t, m.Close())
	_, err := Keys[place](m)
	require.ErrorContains(t, err, "reading the keys of ")
	require.ErrorContains(t, Each(m, func(*place, *uint32) {}), "reading ")
	require.ErrorContains(t, Delete(m, place{}), "deleting an entry of ")
}

func TestWhatProcessorsCountIsSummedUp(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 2})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	each, want := make([]uint64, ebpf.MustPossibleCPU()), uint64(0)
	for i := range each {
		each[i] = uint64(i) + 7
		want += each[i]
	}
	require.NoError(t, m.Put(uint32(1), each))
	sum, err := Sum(m, 1)
	require.NoError(t, err)
	require.Equal(t, want, sum)
	_, err = Sum(m, 2)
	require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
}
