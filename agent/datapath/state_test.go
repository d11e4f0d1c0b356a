// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

func TestAPeersFirstAddressesAreItsNextHops(t *testing.T) {
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	value := peerValue(node.Peer{Peer: Peer{Paths: map[string]PeerPath{
		"blue":    {Up: true, Addresses: addresses("10.0.0.1", "10.0.0.9", "fd00::1", "fd00::9")},
		"green":   {Up: true, Addresses: addresses("fd01::1")},
		"red":     {Up: false, Addresses: addresses("10.2.0.1")},
		"unknown": {Up: true, Addresses: addresses("10.3.0.1")},
	}}}, pathNumbers{"blue": 0, "green": 3, "red": 5}, uplink.ToUplinkWrapping{})
	expected := uplink.ToUplinkPeer{Ipv4Paths: 1 << 0, Ipv6Paths: 1<<0 | 1<<3}
	expected.Ipv4[0] = toAddress(netip.MustParseAddr("10.0.0.1")).Word[3]
	expected.Ipv6[0] = toAddress(netip.MustParseAddr("fd00::1"))
	expected.Ipv6[3] = toAddress(netip.MustParseAddr("fd01::1"))
	expected.Ipv4[5] = toAddress(netip.MustParseAddr("10.2.0.1")).Word[3] // for subflows whose path it is once it is up
	if value != expected {
		t.Errorf("the peer is %+v instead of %+v", value, expected)
	}
}

func TestWeightsAreOfPathsThatExistHere(t *testing.T) {
	packed := packWeights([]v1alpha1.PathWeight{{Path: "blue", Weight: 1}, {Path: "red", Weight: 100}, {Path: "nowhere", Weight: 7}},
		pathNumbers{"blue": 0, "green": 1, "red": 7})
	if packed != 1|100<<56 {
		t.Errorf("the weights are %#x", packed)
	}
}

func TestAddressesSurviveTheMaps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes")
		for _, address := range []netip.Addr{netip.AddrFrom16([16]byte(bytes)).Unmap(), netip.AddrFrom4([4]byte(bytes))} {
			if back := bpf.Address(toAddress(address).Word); back != address {
				t.Fatalf("%s came back as %s", address, back)
			}
		}
	})
}

// rememberFlow puts a flow of two made-up ends into a node's map.
func (l *lab) rememberFlow(t *testing.T, local string, port uint16, flow uplink.ToUplinkFlow) {
	t.Helper()
	key := uplink.ToUplinkFlowKey{Local: toAddress(netip.MustParseAddr(local)), Remote: toAddress(netip.MustParseAddr("10.9.9.9")), LocalPort: port}
	require.NoError(t, l.datapaths[0].loaded.Value.maps().Flows.Put(key, flow))
}

func TestFlowsOfWhatIsGoneAreForgotten(t *testing.T) {
	l := newLab(t, threePaths, 2, Options{})
	first, second := l.Pod("pod-1-1").IPv4, l.Pod("pod-1-2").IPv4
	all := l.states(t)[0]
	all.Peers = append(all.Peers, Peer{Name: "another", Paths: map[string]PeerPath{}, Addresses: []netip.Addr{netip.MustParseAddr("10.20.0.77")}})
	changes := map[string]struct {
		change   func(State) State
		expected []uint16 // ports of the flows that remain
	}{
		"nothing":     {func(s State) State { return s }, []uint16{1, 2, 3, 4}},
		"a path":      {func(s State) State { return without(s, "green") }, []uint16{1, 3, 4}},
		"a peer":      {func(s State) State { s.Peers = s.Peers[:1]; return s }, []uint16{1, 2, 4}},
		"an endpoint": {func(s State) State { s.Endpoints = s.Endpoints[:1]; return s }, []uint16{1, 2, 3}},
		"a NIC's carrier": {func(s State) State {
			s.Paths = slices.Clone(s.Paths)
			s.Paths[1].Up = false
			return s
		}, []uint16{1, 2, 3, 4}},
		"everything but a path": {func(s State) State { s.Peers, s.Endpoints = nil, nil; return without(s, "green") }, nil},
	}
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, l.Nodes[0].Do(func() error { return l.datapaths[0].Remove(t.Context()) }))
			l.apply(t, 0, all)
			known, err := readAll[uint32](l.datapaths[0].loaded.Value.maps().PeerAddresses)
			require.NoError(t, err)
			another := uint16(known[netip.MustParseAddr("10.20.0.77")])
			node2 := uint16(known[all.Peers[0].Addresses[0]])
			numbers := map[string]uint8{"blue": 0, "green": 1, "red": 2}
			l.rememberFlow(t, first, 1, uplink.ToUplinkFlow{Peer: node2, Path: numbers["blue"]})
			l.rememberFlow(t, first, 2, uplink.ToUplinkFlow{Peer: node2, Path: numbers["green"]})
			l.rememberFlow(t, first, 3, uplink.ToUplinkFlow{Peer: another, Path: numbers["blue"]})
			l.rememberFlow(t, second, 4, uplink.ToUplinkFlow{Peer: node2, Path: numbers["blue"]})
			l.apply(t, 0, c.change(all))
			var remaining []uint16
			require.NoError(t, l.datapaths[0].eachFlow(func(key *uplink.ToUplinkFlowKey, _ *uplink.ToUplinkFlow) {
				remaining = append(remaining, key.LocalPort)
			}))
			if slices.Sort(remaining); !slices.Equal(remaining, c.expected) {
				t.Errorf("the flows %v remain instead of %v", remaining, c.expected)
			}
		})
	}
}

// A NIC that cannot be attached to does not keep the rest from being done.
func TestFlowsAreForgottenThoughANICFails(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	state := l.states(t)[0]
	l.apply(t, 0, state)
	l.rememberFlow(t, l.Pod("pod-1-1").IPv4, 1, uplink.ToUplinkFlow{Path: 1})
	state = without(state, "green")
	state.Uplinks = []int{99999}
	err := l.Nodes[0].Do(func() error { return state.Apply(t.Context(), l.datapaths[0], l.builders[0]) })
	if err == nil || !strings.Contains(err.Error(), "99999") {
		t.Errorf("the error is %v", err)
	}
	if flows := l.flows(t, 0); len(flows) != 0 {
		t.Errorf("flows that nobody can have kept:%s", describe(flows))
	}
	for _, path := range []string{"blue", "red"} {
		l.expectAttached(t, 0, path, 1)
	}
}

func TestEndpointsKeepTheirIDs(t *testing.T) {
	l := newLab(t, threePaths, 2, Options{})
	state := l.states(t)[0]
	ids := func() map[netip.Addr]uint32 {
		known, err := readAll[uplink.ToUplinkEndpoint](l.datapaths[0].loaded.Value.maps().Endpoints)
		require.NoError(t, err)
		ids := map[netip.Addr]uint32{}
		for address, endpoint := range known {
			ids[address] = endpoint.Id
		}
		return ids
	}
	l.apply(t, 0, state)
	before := ids()
	pods := l.Nodes[0].Pods
	if len(before) != 4 || before[netip.MustParseAddr(pods[0].IPv4)] != before[netip.MustParseAddr(pods[0].IPv6)] ||
		before[netip.MustParseAddr(pods[0].IPv4)] == before[netip.MustParseAddr(pods[1].IPv4)] {
		t.Errorf("the ids are %v", before)
	}
	slices.Reverse(state.Endpoints)
	l.reopen(t, 0, Options{})
	l.apply(t, 0, state)
	if after := ids(); !maps.Equal(before, after) {
		t.Errorf("the ids were %v and are %v", before, after)
	}
	l.apply(t, 0, State{Paths: state.Paths, Endpoints: state.Endpoints[1:]})
	if after := ids(); len(after) != 2 || after[netip.MustParseAddr(pods[0].IPv4)] != before[netip.MustParseAddr(pods[0].IPv4)] {
		t.Errorf("after one is gone the ids are %v", after)
	}
}

// What the programs counted survives an Apply.
func TestApplyKeepsTheTurnsOfEndpoints(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	state := l.states(t)[0]
	l.apply(t, 0, state)
	endpoints := l.datapaths[0].loaded.Value.maps().Endpoints
	key := toAddress(netip.MustParseAddr(l.Pod("pod-1-1").IPv4))
	var endpoint uplink.ToUplinkEndpoint
	require.NoError(t, endpoints.Lookup(key, &endpoint))
	endpoint.Begun = 0x010001
	require.NoError(t, endpoints.Put(key, endpoint))
	for _, weight := range []int32{1, 50} {
		for i := range state.Endpoints[0].Paths {
			state.Endpoints[0].Paths[i].Weight = weight
		}
		l.apply(t, 0, state)
		require.NoError(t, endpoints.Lookup(key, &endpoint))
		if endpoint.Begun != 0x010001 || endpoint.Weights&0xff != uint64(weight) {
			t.Errorf("the endpoint is %+v", endpoint)
		}
	}
}

func TestNothingIsLoadedWithoutPaths(t *testing.T) {
	d := Open(Options{PinPath: t.TempDir()})
	require.NoError(t, State{Peers: []Peer{{Name: "node2"}}}.Apply(t.Context(), d, nodetest.NewBuilder(t.TempDir())))
	if flows, err := d.Flows(); d.loaded.Is() || flows != nil || err != nil || d.AttachMode() != "" {
		t.Errorf("flows %v, %v, attached by %q", flows, err, d.AttachMode())
	}
}

func TestAPreferenceIsPackedAsTheProgramsReadIt(t *testing.T) {
	numbers := pathNumbers{"blue": 0, "green": 1, "red": 7}
	all := []v1alpha1.PathWeight{{Path: "blue", Weight: 1}, {Path: "red", Weight: 5}, {Path: "nowhere", Weight: 1}}
	cases := map[string]struct {
		endpoint Endpoint
		expected uplink.ToUplinkPreference
	}{
		"no preference": {Endpoint{Paths: all}, uplink.ToUplinkPreference{Allowed: 0x81, Share: 256, Flags: uplink.PreferenceSet}},
		"all of it": {
			Endpoint{Paths: all, Preferred: []v1alpha1.PathName{"red", "nowhere"}, Backup: []v1alpha1.PathName{"blue"}, Class: 7, Share: 100, SamePath: true},
			uplink.ToUplinkPreference{Allowed: 0x81, Preferred: 0x80, Backup: 1, Class: 7, Share: 256, Flags: uplink.PreferenceSet | uplink.PreferenceSame},
		},
		"half of the flows":    {Endpoint{Share: 50}, uplink.ToUplinkPreference{Share: 128, Flags: uplink.PreferenceSet}},
		"one in a hundred":     {Endpoint{Share: 1}, uplink.ToUplinkPreference{Share: 3, Flags: uplink.PreferenceSet}},
		"all but one in a 100": {Endpoint{Share: 99}, uplink.ToUplinkPreference{Share: 253, Flags: uplink.PreferenceSet}},
	}
	for name, c := range cases {
		plan := c.endpoint.Plan()
		of := &node.Endpoint{PlanEndpoint: &plan, Class: c.endpoint.Class}
		if value := preferenceValue(of, numbers, false); value != c.expected {
			t.Errorf("%s: %+v instead of %+v", name, value, c.expected)
		}
	}
}
