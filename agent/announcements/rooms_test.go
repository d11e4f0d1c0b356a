// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"errors"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/announcements"
)

// An interface's number may be another tenant's one day.
func TestRoomsAndTurnsOfTenantsWithoutPodsAreForgotten(t *testing.T) {
	l := newLab(t, usual)
	pod := l.Nodes[1].Pods[0]
	own, err := l.Nodes[1].Index(pod.HostInterface)
	require.NoError(t, err)
	const other = 1 << 20
	rooms, turns := l.holder.loaded.Value.Rooms, l.holder.loaded.Value.Turns
	for _, key := range []uint32{uint32(own), other} {
		require.NoError(t, rooms.Put(key, &announcements.HoldRoom{Left: 1}))
		require.NoError(t, turns.Put(key, uint64(1)))
	}
	l.leave(t)
	l.hold(t, usual)
	rooms, turns = l.holder.loaded.Value.Rooms, l.holder.loaded.Value.Turns
	for _, m := range []*ebpf.Map{rooms, turns} {
		value, err := m.LookupBytes(uint32(own))
		require.NoError(t, err)
		require.NotNil(t, value, "what is known of a tenant stays when the agent starts again: %v", m)
		value, err = m.LookupBytes(uint32(other))
		require.True(t, err == nil || errors.Is(err, ebpf.ErrKeyNotExist), err)
		require.Nil(t, value, "%v", m)
	}
}

func TestTurnsThatANamespaceHasLeftAreTold(t *testing.T) {
	l := newLab(t, usual)
	own, err := l.Nodes[1].Index(l.Nodes[1].Pods[0].HostInterface)
	require.NoError(t, err)
	require.Empty(t, metricsOf(t, l.holder, "braid_announcement_turns_left"), "nobody took a turn")
	for ago, left := range map[time.Duration]float64{-time.Minute: 0, time.Hour: announcements.TurnsAtOnce} {
		require.NoError(t, l.holder.loaded.Value.Turns.Put(uint32(own), uint64(bpf.Now()-ago)))
		told := metricsOf(t, l.holder, "braid_announcement_turns_left")
		require.Len(t, told, 1)
		require.Equal(t, left, told[0].GetGauge().GetValue(), "taken until %v ago", ago)
	}
}

func TestTurnsComeBackOneAfterTheOther(t *testing.T) {
	const now, every = time.Hour, announcements.TurnEvery
	for until, left := range map[time.Duration]int{
		now + 1: 0, now: 1, now - every + 1: 1, now - every: 2, now - every*5/2: 3,
		now - 63*every: 64, now - 64*every: 64, 0: 64,
	} {
		require.Equal(t, left, turnsAt(now, until), "until %v", until)
	}
}
