// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/uplink"
)

func newLastingTable(t *testing.T) *lastingTable {
	t.Helper()
	spec, err := uplink.LoadToUplink()
	require.NoError(t, err)
	lasting, err := ebpf.NewMap(spec.Maps[uplink.ToUplinkMapLasting])
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lasting.Close()) })
	table := &lastingTable{}
	table.use(&uplink.ToUplinkMaps{Lasting: lasting})
	return table
}

func known(t *testing.T, table *lastingTable) map[uplink.ToUplinkLastingKey]Lasting {
	t.Helper()
	all := map[uplink.ToUplinkLastingKey]Lasting{}
	require.NoError(t, table.each(func(l *Lasting) { all[uplink.ToUplinkLastingKey{Endpoint: l.Endpoint, Peer: l.Peer}] = *l }))
	return all
}

func TestAPathIsSlowForSoLongAndUntilItIsNot(t *testing.T) {
	table, key := newLastingTable(t), uplink.ToUplinkLastingKey{Endpoint: 3, Peer: 5}
	counted := uplink.ToUplinkLasting{
		Begun: [8]uint32{9, 8}, Ended: [8]uint32{7, 6}, Timed: [8]uint32{5, 4}, Times: [8]uint64{300, 200}, Squares: [8]uint64{30000, 20000},
		Total: [8]uint64{70, 60}, TotalSquares: [8]uint64{7000, 6000},
	}
	require.NoError(t, table.maps.Lasting.Put(key, counted))
	require.NoError(t, table.setSlow(key, 1, time.Minute))
	var value uplink.ToUplinkLasting
	require.NoError(t, table.maps.Lasting.Lookup(key, &value))
	now, err := slice()
	require.NoError(t, err)
	seconds := (time.Duration(int32(value.Until[1]-now<<(uplink.SliceBits-uplink.Tick))) << uplink.Tick).Seconds()
	require.InDelta(t, 60, seconds, 1)
	require.Equal(t, Lasting{Endpoint: 3, Peer: 5, On: [uplink.MaxPaths]LastingOn{{9, 7, 5, 300, 30000, 70, 7000, false}, {8, 6, 4, 200, 20000, 60, 6000, true}}}, known(t, table)[key])
	require.NoError(t, table.setSlow(key, 1, 0))
	require.False(t, known(t, table)[key].On[1].Slow)
	value.Until = [8]uint32{}
	require.Equal(t, counted, value, "what was counted stays")
}

func TestWhatIsNotKnownIsNotSlow(t *testing.T) {
	table := newLastingTable(t)
	require.NoError(t, table.setSlow(uplink.ToUplinkLastingKey{Endpoint: 3}, 1, time.Minute))
	require.Empty(t, known(t, table))
	table.use(nil)
	require.NoError(t, table.setSlow(uplink.ToUplinkLastingKey{Endpoint: 3}, 1, time.Minute))
	require.NoError(t, table.forget(node.Numbers{node.KindPath: {1: true}}))
	require.Empty(t, known(t, table))
}

func TestWhatBelongsToNobodyIsForgotten(t *testing.T) {
	keys := []uplink.ToUplinkLastingKey{{Endpoint: 1, Peer: 1}, {Endpoint: 1, Peer: 2}, {Endpoint: 2, Peer: 1}}
	for _, test := range []struct {
		name    string
		retired node.Numbers
		left    []uplink.ToUplinkLastingKey
	}{
		{"nothing is retired", node.Numbers{}, keys},
		{"an endpoint", node.Numbers{node.KindEndpoint: {1: true}}, keys[2:]},
		{"a peer", node.Numbers{node.KindPeer: {2: true}}, []uplink.ToUplinkLastingKey{keys[0], keys[2]}},
		{"a path", node.Numbers{node.KindPath: {1: true}}, nil},
	} {
		table := newLastingTable(t)
		for _, key := range keys {
			require.NoError(t, table.maps.Lasting.Put(key, uplink.ToUplinkLasting{}))
		}
		require.NoError(t, table.forget(test.retired))
		var left []uplink.ToUplinkLastingKey
		for key := range known(t, table) {
			left = append(left, uplink.ToUplinkLastingKey{Endpoint: key.Endpoint, Peer: key.Peer})
		}
		require.ElementsMatch(t, test.left, left, test.name)
	}
}
