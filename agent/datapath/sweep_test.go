// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// now is the clock of a node that has been up for three days.
const now = 3 * 24 * 60 * 60

// setClock sets a node's clock, as a round does.
func (l *lab) setClock(t *testing.T, clock uint32) *uplink.ToUplinkMaps {
	t.Helper()
	maps := l.datapaths[0].loaded.Value.maps()
	var value uplink.ToUplinkNode
	require.NoError(t, maps.Node.Lookup(uint32(0), &value))
	value.Clock = clock
	require.NoError(t, maps.Node.Put(uint32(0), value))
	return maps
}

func (l *lab) sweep(t testutil.TB) map[netip.Addr]uplink.ToUplinkOwner {
	t.Helper()
	require.NoError(t, l.datapaths[0].flows.sweep())
	owners, err := readAll[uplink.ToUplinkOwner](l.datapaths[0].loaded.Value.maps().Owners)
	require.NoError(t, err)
	return owners
}

// Flows that nobody saw the end of, and those that were pushed out, count no more.
func TestCountsOfFlowsAreCorrected(t *testing.T) {
	l := newLab(t, []string{"blue"}, 1, Options{})
	l.applyAll(t)
	maps := l.setClock(t, now)
	gone, living, unknown := netip.MustParseAddr("10.244.9.9"), netip.MustParseAddr("fd00:244:9::9"), netip.MustParseAddr("10.244.9.7")
	require.NoError(t, maps.Owners.Put(toAddress(gone), uplink.ToUplinkOwner{Flows: 16384, Unknown: 1024}))
	for port := range uint16(3 * drift) {
		key := uplink.ToUplinkFlowKey{Local: toAddress(gone), Remote: toAddress(living), RemotePort: port}
		require.NoError(t, maps.Flows.Put(key, uplink.ToUplinkFlow{Role: 2, Used: now, Ended: uint8(port % 3 / 2 * uplink.EndedBoth)}))
		key = uplink.ToUplinkFlowKey{Local: toAddress(unknown), RemotePort: port}
		require.NoError(t, maps.Flows.Put(key, uplink.ToUplinkFlow{Role: uplink.RoleInitiator, Used: now}))
	}
	require.NoError(t, maps.Owners.Put(toAddress(living), uplink.ToUplinkOwner{Flows: 1}))
	owners := l.sweep(t)
	if owners[gone] != (uplink.ToUplinkOwner{}) || owners[living].Flows != 2*drift || owners[unknown].Flows != 3*drift {
		t.Errorf("the counts are %+v", owners)
	}
	var all uint32
	require.NoError(t, maps.LivingFlows.Lookup(uint32(0), &all))
	if all != 5*drift {
		t.Errorf("%d flows are counted", all)
	}
}

// The kernel pushes the least used flows out of a table that is full, and tells nobody.
func TestFlowsThatWerePushedOutCountNoMore(t *testing.T) {
	l := newLab(t, []string{"blue"}, 1, Options{})
	l.applyAll(t)
	maps := l.setClock(t, now)
	owner := netip.MustParseAddr("10.244.9.9")
	const begun = 3 * 4096
	for port := range uint16(begun) {
		key := uplink.ToUplinkFlowKey{Local: toAddress(owner), LocalPort: port}
		require.NoError(t, maps.Flows.Put(key, uplink.ToUplinkFlow{Role: uplink.RoleInitiator, Used: now}))
	}
	require.NoError(t, maps.Owners.Put(toAddress(owner), uplink.ToUplinkOwner{Flows: begun}))
	left := uint32(len(l.flows(t, 0)))
	if counted := l.sweep(t)[owner].Flows; left == 0 || left >= begun || counted != left {
		t.Errorf("%d of %d flows are left, and %d are counted", left, begun, counted)
	}
}

// Who is silent keeps its path for a day, and costs its owner no room meanwhile.
func TestFlowsAgeByTheirLastUse(t *testing.T) {
	l := newLab(t, []string{"blue"}, 1, Options{})
	l.applyAll(t)
	maps := l.setClock(t, now)
	owner := toAddress(netip.MustParseAddr("10.244.9.9"))
	const each = 2 * drift
	for port := range uint16(4 * each) {
		used := map[uint16]uint32{0: now, 1: now - restingAge - 1, 2: now - flowAge - 1, 3: 0}[port%4]
		require.NoError(t, maps.Flows.Put(uplink.ToUplinkFlowKey{Local: owner, LocalPort: port}, uplink.ToUplinkFlow{Role: uplink.RoleInitiator, Used: used}))
	}
	if counted := l.sweep(t)[netip.MustParseAddr("10.244.9.9")].Flows; counted != each {
		t.Errorf("%d flows are counted of %d that are used", counted, each)
	}
	if left := len(l.flows(t, 0)); left != 3*each {
		t.Errorf("%d flows are left", left)
	}
}

func TestOldHandshakesAreForgottenAndGiveTheirPlacesBack(t *testing.T) {
	l := newLab(t, []string{"blue"}, 1, Options{})
	l.applyAll(t)
	maps := l.setClock(t, now)
	connection := uplink.ToUplinkConnectionKey{Endpoint: 7, Token: 42}
	require.NoError(t, maps.Connections.Put(connection, uplink.ToUplinkConnection{Subflows: 2<<8 | 1}))
	for port, used := range []uint32{now, now - handshakeAge, now - handshakeAge - 1} {
		flow := uplink.ToUplinkFlow{Role: uplink.RoleInitiator, Endpoint: 7, Token: 42, Path: 1, Used: used}
		require.NoError(t, maps.Handshakes.Put(uplink.ToUplinkFlowKey{LocalPort: uint16(port)}, uplink.ToUplinkHandshake{Flow: flow}))
	}
	l.sweep(t)
	var left []uint16
	require.NoError(t, entries.Each(maps.Handshakes, func(key *uplink.ToUplinkFlowKey, _ *uplink.ToUplinkHandshake) { left = append(left, key.LocalPort) }))
	require.ElementsMatch(t, []uint16{0, 1}, left)
	var places uplink.ToUplinkConnection
	require.NoError(t, maps.Connections.Lookup(connection, &places))
	if places.Subflows != 1<<8|1 {
		t.Errorf("the places are %#x", places.Subflows)
	}
}
