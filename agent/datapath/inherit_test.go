// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
)

// firstFlow is struct flow of v1.
type firstFlow struct {
	Sequence, Token, Endpoint uint32
	Peer                      uint16
	Path, Allowed             uint8
	Role, Ended, Turn         uint8
	Subtype                   uint8
}

// pinV1 pins a map as agents of v1 had it.
func (l *lab) pinV1(t *testing.T, name string, change func(*ebpf.MapSpec)) *ebpf.Map {
	t.Helper()
	spec, err := uplink.LoadToUplink()
	require.NoError(t, err)
	change(spec.Maps[name])
	m, err := ebpf.NewMap(spec.Maps[name])
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	directory := filepath.Join(Directory(l.nodeOptions(0).PinPath), "v1")
	require.NoError(t, os.MkdirAll(directory, 0o700))
	require.NoError(t, m.Pin(filepath.Join(directory, name)))
	return m
}

// An upgrade from v1 loses no flow, wherever its handshake was, and the ends of none.
func TestFlowsOfTheFirstVersionAreTakenOver(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	pod, peer := toAddress(netip.MustParseAddr(l.Pod("pod-1-1").IPv4)), toAddress(netip.MustParseAddr("10.244.2.2"))
	flows := l.pinV1(t, uplink.ToUplinkMapFlows, func(spec *ebpf.MapSpec) {
		spec.MaxEntries, spec.ValueSize = 4096, 20
		older := btf.Copy(spec.Value).(*btf.Struct)
		older.Members = older.Members[:slices.IndexFunc(older.Members, func(m btf.Member) bool { return m.Name == "used" })]
		older.Size, spec.Value = 20, older
	})
	l.pinV1(t, uplink.ToUplinkMapPeers, func(spec *ebpf.MapSpec) { spec.MaxEntries = 4096 })
	wanted := map[uint16]firstFlow{
		1: {Sequence: 1, Token: 2, Endpoint: 1, Path: 1, Allowed: 7, Role: uplink.RoleInitiator, Turn: 9, Subtype: uplink.Answered},
		2: {Sequence: 3, Path: 2, Allowed: 255, Role: uplink.RoleResponder, Subtype: 1},
		3: {Sequence: 4, Path: 2, Allowed: 255, Role: uplink.RoleResponder, Ended: uplink.EndedBoth},
	}
	for port, flow := range wanted {
		require.NoError(t, flows.Put(uplink.ToUplinkFlowKey{Local: pod, Remote: peer, LocalPort: port}, flow))
	}
	l.apply(t, 0, l.states(t)[0])
	found := map[uint16]firstFlow{}
	require.NoError(t, l.datapaths[0].eachFlow(func(key *uplink.ToUplinkFlowKey, f *uplink.ToUplinkFlow) {
		endpoint := f.Endpoint
		if wanted[key.LocalPort].Endpoint == 0 {
			endpoint = 0 // it has learned whose it is
		}
		found[key.LocalPort] = firstFlow{f.Sequence, f.Token, endpoint, f.Peer, f.Path, f.Allowed, f.Role, f.Ended, f.Turn, f.Subtype}
	}))
	require.Equal(t, wanted, found)
	require.NoError(t, l.datapaths[0].flows.sweep())
	if left := l.flows(t, 0); len(left) != len(wanted) {
		t.Errorf("%d flows are left", len(left))
	}
}
