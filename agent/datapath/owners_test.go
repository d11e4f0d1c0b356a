// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
)

// Flows that nobody saw the end of, and those that were pushed out, count no more.
func TestCountsOfFlowsAreCorrected(t *testing.T) {
	l := newLab(t, []string{"blue"}, 1, Options{})
	l.applyAll(t)
	d := l.datapaths[0]
	gone, living := netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("fd00:244:9::9")
	maps := d.loaded.Value.maps()
	require.NoError(t, maps.Owners.Put(toAddress(gone), uplink.ToUplinkOwner{Flows: 16384, Unknown: 1024}))
	for port := range uint16(3 * drift) {
		key := uplink.ToUplinkFlowKey{Local: toAddress(gone), Remote: toAddress(living), RemotePort: port}
		require.NoError(t, maps.Flows.Put(key, uplink.ToUplinkFlow{Role: 2, Ended: uint8(port % 3 / 2 * uplink.EndedBoth)}))
	}
	require.NoError(t, maps.Owners.Put(toAddress(living), uplink.ToUplinkOwner{Flows: 1}))
	d.counted = time.Time{}
	require.NoError(t, d.recount())
	owners, err := readAll[uplink.ToUplinkOwner](maps.Owners)
	require.NoError(t, err)
	if owners[gone] != (uplink.ToUplinkOwner{}) || owners[living].Flows != 2*drift {
		t.Errorf("the counts are %+v", owners)
	}
	var all uint32
	require.NoError(t, maps.LivingFlows.Lookup(uint32(0), &all))
	if all != 2*drift {
		t.Errorf("%d flows are counted", all)
	}
}
