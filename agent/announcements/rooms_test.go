// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

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
