// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf/uplink"
)

func TestFlowsThatSendLittleForLongAreForgottenUnlessTheyShareAPath(t *testing.T) {
	spec, err := uplink.LoadToUplink()
	require.NoError(t, err)
	busy, err := ebpf.NewMap(spec.Maps["busy_flows"])
	require.NoError(t, err)
	defer busy.Close()
	table := &busyTable{}
	table.use(&uplink.ToUplinkMaps{BusyFlows: busy})
	now, err := slice()
	require.NoError(t, err)
	note := func(port uint16, at uint32, together uint8) {
		require.NoError(t, busy.Put(uplink.ToUplinkFlowKey{LocalPort: port}, uplink.ToUplinkBusyFlow{Slice: at, Together: together}))
	}
	note(1, now+1, 0) // the next slice begins meanwhile
	note(2, now, 0)
	note(3, now-recentSlices-10, 0)
	for port := uint16(10); port < 2000; port++ {
		note(port, now-staleSlices-10, 0)
	}
	note(4, now-staleSlices-10, uplink.Together)
	flows, err := table.read()
	require.NoError(t, err)
	busyOnes := 0
	for _, flow := range flows {
		if flow.Busy {
			busyOnes++
		}
	}
	require.Equal(t, []int{3, 2}, []int{len(flows), busyOnes})
	left := 0
	require.NoError(t, entries.Each(busy, func(*uplink.ToUplinkFlowKey, *uplink.ToUplinkBusyFlow) { left++ }))
	require.Equal(t, 4, left)
}

func TestThePathOfAFlowIsThatOfWhatItSentLast(t *testing.T) {
	spec, err := uplink.LoadToUplink()
	require.NoError(t, err)
	spec.Maps["flows"].MaxEntries = 16
	flows, err := ebpf.NewMap(spec.Maps["flows"])
	require.NoError(t, err)
	defer flows.Close()
	table := &busyTable{}
	local, remote := netip.MustParseAddrPort("192.0.2.1:40000"), netip.MustParseAddrPort("192.0.2.2:80")
	require.NoError(t, flows.Put(keyOf(local, remote), uplink.ToUplinkFlow{Path: 1, Last: 2}))
	_, known, err := table.pathOf(local, remote)
	require.NoError(t, err)
	require.False(t, known, "with nothing loaded")
	table.use(&uplink.ToUplinkMaps{Flows: flows})
	path, known, err := table.pathOf(local, remote)
	require.NoError(t, err)
	require.True(t, known)
	require.Equal(t, uint8(2), path)
	_, known, err = table.pathOf(remote, local)
	require.NoError(t, err)
	require.False(t, known, "of a flow that nobody saw")
	require.NoError(t, flows.Put(keyOf(local, remote), uplink.ToUplinkFlow{Path: 1, Last: uplink.NoPath}))
	_, known, err = table.pathOf(local, remote)
	require.NoError(t, err)
	require.False(t, known, "of one that has sent nothing")
}
