// SPDX-License-Identifier: Apache-2.0

package shared

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/testutil"
)

func specOf(name string, room uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: room, Pinning: ebpf.PinByName}
}

func hold(t *testing.T, directory, part string, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	m, err := Hold(directory, part, spec)
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func has(t *testing.T, m *ebpf.Map, key uint32) bool {
	t.Helper()
	var value uint32
	err := m.Lookup(key, &value)
	if err != nil {
		require.ErrorIs(t, err, ebpf.ErrKeyNotExist)
	}
	return err == nil
}

func TestBothPartsHoldOneMapOfAName(t *testing.T) {
	directory := Directory(testutil.BPFFS(t))
	rules := hold(t, directory, ByRules, specOf(pacedSockets, 8))
	requests := hold(t, directory, ByRequests, specOf(pacedSockets, 8))
	require.NoError(t, rules.Put(uint32(7), uint32(1)))
	require.True(t, has(t, requests, 7), "what one writes the other reads")
	other := hold(t, directory, ByRequests, specOf("asked_by_rules", 8))
	require.False(t, has(t, other, 7), "a map of another name is another one")
}

func TestAMapIsThereAsLongAsAPartHoldsIt(t *testing.T) {
	directory := Directory(testutil.BPFFS(t))
	require.NoError(t, hold(t, directory, ByRules, specOf(pacedSockets, 8)).Put(uint32(7), uint32(1)))
	hold(t, directory, ByRequests, specOf(pacedSockets, 8))
	hold(t, directory, ByRequests, specOf("asked_by_rules", 8))
	require.NoError(t, Leave(directory, ByRules))
	require.True(t, has(t, hold(t, directory, ByRules, specOf(pacedSockets, 8)), 7), "the other part still held it")
	require.NoError(t, Leave(directory, ByRules))
	require.NoError(t, Leave(directory, ByRequests))
	_, err := os.Stat(directory)
	require.ErrorIs(t, err, os.ErrNotExist, "nothing is left of it")
	require.False(t, has(t, hold(t, directory, ByRules, specOf(pacedSockets, 8)), 7), "it begins anew")
}

// An agent before had another layout, whose map goes when the last program that has it does.
func TestAMapOfAnotherLayoutIsNotShared(t *testing.T) {
	directory := Directory(testutil.BPFFS(t))
	old := hold(t, directory, ByRules, specOf(pacedSockets, 8))
	require.NoError(t, old.Put(uint32(7), uint32(1)))
	own := hold(t, directory, ByRules, specOf(pacedSockets, 16))
	require.False(t, has(t, own, 7))
	require.NoError(t, own.Put(uint32(9), uint32(1)))
	require.True(t, has(t, hold(t, directory, ByRequests, specOf(pacedSockets, 16)), 9))
}

func TestToLeaveWhatIsNotHeldIsNoFailure(t *testing.T) {
	directory := Directory(testutil.BPFFS(t))
	require.NoError(t, Leave(directory, ByRules))
	hold(t, directory, ByRequests, specOf(pacedSockets, 8))
	require.NoError(t, Leave(directory, ByRules))
	pins, err := filepath.Glob(filepath.Join(directory, "*"))
	require.NoError(t, err)
	require.Len(t, pins, 1, "what the other part holds stays")
}
