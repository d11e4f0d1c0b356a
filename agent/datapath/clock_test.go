// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
)

func TestTheClockMovesBetweenRoundsAndLeavesThePathsAsTheyAre(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "node", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(uplink.ToUplinkNode{})), MaxEntries: 1,
	})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	var entry nodeEntry
	require.NoError(t, entry.moveClock(16), "nothing is loaded")
	entry.use(m)
	round := uplink.ToUplinkNode{PathsUp: 5, Clock: 16}
	round.Interface[2] = 7
	require.NoError(t, entry.put(&round))
	for _, now := range []uint32{16, 32, 32} {
		require.NoError(t, entry.moveClock(now))
		var value uplink.ToUplinkNode
		require.NoError(t, m.Lookup(uint32(0), &value))
		want := round
		want.Clock = now
		require.Equal(t, want, value)
	}
	entry.use(nil)
	require.NoError(t, entry.moveClock(48), "nothing is loaded any more")
}

// Else a packet could be in the step of the clock in which a flow was changed, and after it.
func TestTheClockNeverGoesBackWhereFlowsAreToBeAskedAgain(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "node", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(uplink.ToUplinkNode{})), MaxEntries: 1,
	})
	require.NoError(t, err)
	t.Cleanup(func() { m.Close() })
	var entry nodeEntry
	require.NoError(t, entry.askFlows(), "nothing is loaded")
	entry.use(m)
	shows := func(clock uint32, after error) {
		t.Helper()
		require.NoError(t, after)
		var value uplink.ToUplinkNode
		require.NoError(t, m.Lookup(uint32(0), &value))
		require.Equal(t, clock, value.Clock)
	}
	shows(16, entry.put(&uplink.ToUplinkNode{Clock: 16}))
	shows(17, entry.askFlows())
	shows(17, entry.moveClock(16))
	shows(17, entry.put(&uplink.ToUplinkNode{Clock: 16}))
	shows(18, entry.askFlows())
	shows(32, entry.moveClock(32))
	shows(33, entry.askFlows())
}
