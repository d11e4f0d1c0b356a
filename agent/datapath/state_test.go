// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

func TestStatesThatTheMapsCannotHoldAreRefused(t *testing.T) {
	nine := make([]Path, 9)
	for i := range nine {
		nine[i] = Path{Name: fmt.Sprint("path", i), Interface: i + 1}
	}
	cases := map[string]struct {
		paths []Path
		names string // what the error must name
	}{
		"more paths than slots":    {nine, "9 paths"},
		"a path without a NIC":     {[]Path{{Name: "blue"}}, `"blue"`},
		"a path of a negative NIC": {[]Path{{Name: "blue", Interface: -1}}, `"blue"`},
		"a name that is too long":  {[]Path{{Name: strings.Repeat("x", 64), Interface: 1}}, "63"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			err := Open(Options{PinPath: t.TempDir()}).Apply(State{Paths: c.paths})
			if err == nil || !strings.Contains(err.Error(), c.names) {
				t.Errorf("the error is %v", err)
			}
		})
	}
	longest := State{Paths: []Path{{Name: strings.Repeat("x", 63), Interface: 1}}}
	if err := longest.validate(); err != nil {
		t.Errorf("the longest name: %v", err)
	}
}

// Paths come and go; one that stays keeps its slot, because flows refer to it.
func TestPathsKeepTheirSlots(t *testing.T) {
	all := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k"}
	rapid.Check(t, func(t *rapid.T) {
		var before [slots]string
		for range 10 {
			names := rapid.Permutation(all).Draw(t, "names")[:rapid.IntRange(0, slots).Draw(t, "count")]
			after, slotOf := assignSlots(before, names)
			for _, name := range names {
				slot, ok := slotOf[name]
				if !ok || after[slot] != name {
					t.Fatalf("%q has the slot %d of %q", name, slot, after)
				}
				if was := slices.Index(before[:], name); was >= 0 && was != int(slot) {
					t.Fatalf("%q moved from slot %d to %d", name, was, slot)
				}
			}
			used := slices.DeleteFunc(slices.Clone(after[:]), func(name string) bool { return name == "" })
			if len(used) != len(names) || len(slotOf) != len(names) {
				t.Fatalf("for %q the slots are %q", names, after)
			}
			before = after
		}
	})
}

func TestPeersKeepTheirIndexes(t *testing.T) {
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	rapid.Check(t, func(t *rapid.T) {
		known := map[netip.Addr]uint32{}
		indexBefore := map[string]uint32{}
		for range 6 {
			var peers []Peer
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(1, 12), 0, 8, rapid.ID).Draw(t, "peers") {
				peers = append(peers, Peer{Name: fmt.Sprint("node", i), Addresses: []netip.Addr{address(i), address(100 + i)}})
			}
			indexOf, err := assignPeers(known, peers)
			if err != nil {
				t.Fatal(err)
			}
			after, indexes := map[netip.Addr]uint32{}, map[uint32]string{}
			for _, peer := range peers {
				index, ok := indexOf[peer.Name]
				if other, taken := indexes[index]; !ok || taken {
					t.Fatalf("%s has the index %d, and so has %q", peer.Name, index, other)
				}
				indexes[index] = peer.Name
				if was, stayed := indexBefore[peer.Name]; stayed && was != index {
					t.Fatalf("%s moved from index %d to %d", peer.Name, was, index)
				}
				for _, before := range known {
					if _, stayed := indexBefore[peer.Name]; !stayed && before == index {
						t.Fatalf("%s is new and has the index %d that flows of another may still refer to", peer.Name, index)
					}
				}
				for _, a := range peer.Addresses {
					after[a] = index
				}
			}
			known, indexBefore = after, indexOf
		}
	})
}

func TestMorePeersThanTheMapHoldsAreAnError(t *testing.T) {
	peers := make([]Peer, maxPeers+1)
	for i := range peers {
		peers[i] = Peer{Name: fmt.Sprint(i)}
	}
	if _, err := assignPeers(nil, peers); err == nil || !strings.Contains(err.Error(), "4097") {
		t.Errorf("the error is %v", err)
	}
	if _, err := assignPeers(nil, peers[:maxPeers]); err != nil {
		t.Errorf("as many as it holds: %v", err)
	}
}

func TestAPeersFirstAddressesAreItsNextHops(t *testing.T) {
	addresses := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	value := peerValue(Peer{Paths: map[string]PeerPath{
		"blue":    {Up: true, Addresses: addresses("10.0.0.1", "10.0.0.9", "fd00::1", "fd00::9")},
		"green":   {Up: true, Addresses: addresses("fd01::1")},
		"red":     {Up: false, Addresses: addresses("10.2.0.1")},
		"unknown": {Up: true, Addresses: addresses("10.3.0.1")},
	}}, map[string]uint8{"blue": 0, "green": 3, "red": 5})
	expected := uplink.ToUplinkPeer{Ipv4Paths: 1 << 0, Ipv6Paths: 1<<0 | 1<<3}
	expected.Ipv4[0] = toAddress(netip.MustParseAddr("10.0.0.1")).Word[3]
	expected.Ipv6[0] = toAddress(netip.MustParseAddr("fd00::1"))
	expected.Ipv6[3] = toAddress(netip.MustParseAddr("fd01::1"))
	if value != expected {
		t.Errorf("the peer is %+v instead of %+v", value, expected)
	}
}

func TestWeightsAreOfPathsThatExistHere(t *testing.T) {
	packed := packWeights([]v1alpha1.PathWeight{{Path: "blue", Weight: 1}, {Path: "red", Weight: 100}, {Path: "nowhere", Weight: 7}},
		map[string]uint8{"blue": 0, "green": 1, "red": 7})
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
	require.NoError(t, l.datapaths[0].objects.maps().Flows.Put(key, flow))
}

func TestFlowsOfWhatIsGoneAreForgotten(t *testing.T) {
	l := newLab(t, threePaths, 2, Options{})
	first, second := l.Pod("pod-1-1").IPv4, l.Pod("pod-1-2").IPv4
	all := l.states(t)[0]
	all.Peers = append(all.Peers, Peer{Name: "another", Addresses: []netip.Addr{netip.MustParseAddr("10.20.0.77")}})
	changes := map[string]struct {
		change   func(State) State
		expected []uint16 // ports of the flows that remain
	}{
		"nothing":     {func(s State) State { return s }, []uint16{1, 2, 3, 4}},
		"a path":      {func(s State) State { return s.without("green") }, []uint16{1, 3, 4}},
		"a peer":      {func(s State) State { s.Peers = s.Peers[:1]; return s }, []uint16{1, 2, 4}},
		"an endpoint": {func(s State) State { s.Endpoints = s.Endpoints[:1]; return s }, []uint16{1, 2, 3}},
		"a NIC's carrier": {func(s State) State {
			s.Paths = slices.Clone(s.Paths)
			s.Paths[1].Up = false
			return s
		}, []uint16{1, 2, 3, 4}},
		"everything but a path": {func(s State) State { s.Peers, s.Endpoints = nil, nil; return s.without("green") }, nil},
	}
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, l.Nodes[0].Do(l.datapaths[0].Remove))
			l.apply(t, 0, all)
			known, err := readAll[uint32](l.datapaths[0].objects.maps().PeerAddresses)
			require.NoError(t, err)
			another := uint16(known[netip.MustParseAddr("10.20.0.77")])
			node2 := uint16(known[all.Peers[0].Addresses[0]])
			_, slotOf := assignSlots([slots]string{}, threePaths)
			l.rememberFlow(t, first, 1, uplink.ToUplinkFlow{Peer: node2, Path: slotOf["blue"]})
			l.rememberFlow(t, first, 2, uplink.ToUplinkFlow{Peer: node2, Path: slotOf["green"]})
			l.rememberFlow(t, first, 3, uplink.ToUplinkFlow{Peer: another, Path: slotOf["blue"]})
			l.rememberFlow(t, second, 4, uplink.ToUplinkFlow{Peer: node2, Path: slotOf["blue"]})
			l.apply(t, 0, c.change(all))
			var remaining []uint16
			require.NoError(t, l.datapaths[0].eachFlow(func(key uplink.ToUplinkFlowKey, _ uplink.ToUplinkFlow) {
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
	state = state.without("green")
	state.Uplinks = []int{99999}
	err := l.Nodes[0].Do(func() error { return l.datapaths[0].Apply(state) })
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
		known, err := readAll[uplink.ToUplinkEndpoint](l.datapaths[0].objects.maps().Endpoints)
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
	endpoints := l.datapaths[0].objects.maps().Endpoints
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
	require.NoError(t, d.Apply(State{Peers: []Peer{{Name: "node2"}}}))
	if flows, err := d.Flows(); d.objects != nil || flows != nil || err != nil || d.AttachMode() != "" {
		t.Errorf("flows %v, %v, attached by %q", flows, err, d.AttachMode())
	}
}

// Endpoints come and go; one that stays keeps its id, and no new one gets an id
// that flows of another may still refer to.
func TestEndpointsKeepTheirIDsAsOthersComeAndGo(t *testing.T) {
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }
	rapid.Check(t, func(t *rapid.T) {
		known := map[netip.Addr]uplink.ToUplinkEndpoint{}
		for i := range rapid.IntRange(0, 3).Draw(t, "of an older agent") {
			known[address(i+1)] = uplink.ToUplinkEndpoint{Id: uint32(rapid.SampledFrom([]int{0, 1, 4095, 4096, 1 << 20}).Draw(t, "id"))}
		}
		for round := range 6 {
			var endpoints []Endpoint
			for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(1, 12), 0, 8, rapid.ID).Draw(t, "endpoints") {
				endpoints = append(endpoints, Endpoint{Addresses: []netip.Addr{address(i), address(100 + i)}})
			}
			ids, err := assignIDs(known, endpoints)
			if err != nil {
				t.Fatal(err)
			}
			after, owner := map[netip.Addr]uplink.ToUplinkEndpoint{}, map[uint32]netip.Addr{}
			for i, id := range ids {
				first := endpoints[i].Addresses[0]
				if other, taken := owner[id]; taken || id == 0 || id >= maxEndpoints {
					t.Fatalf("%s has the id %d, and so has %s", first, id, other)
				}
				owner[id] = first
				before, stayed := known[first]
				if stayed && before.Id != id && round > 0 {
					t.Fatalf("%s had the id %d and has %d", first, before.Id, id)
				}
				for of, was := range known {
					if !stayed && was.Id == id {
						t.Fatalf("%s is new and has the id %d of %s", first, id, of)
					}
				}
				for _, a := range endpoints[i].Addresses {
					after[a] = uplink.ToUplinkEndpoint{Id: id}
				}
			}
			known = after
		}
	})
}

func TestMoreEndpointsThanTheMapHoldsAreAnError(t *testing.T) {
	if ids, err := assignIDs(nil, make([]Endpoint, maxEndpoints-1)); err != nil || slices.Max(ids) != maxEndpoints-1 {
		t.Errorf("as many as it holds: %v", err)
	}
	if _, err := assignIDs(nil, make([]Endpoint, maxEndpoints)); err == nil || !strings.Contains(err.Error(), "4095") {
		t.Errorf("the error is %v", err)
	}
}

func TestAPreferenceIsPackedAsTheProgramsReadIt(t *testing.T) {
	slotOf := map[string]uint8{"blue": 0, "green": 1, "red": 7}
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
		if value := preferenceValue(&c.endpoint, slotOf); value != c.expected {
			t.Errorf("%s: %+v instead of %+v", name, value, c.expected)
		}
	}
}

func TestEndpointsThatTheMapsCannotHoldAreRefused(t *testing.T) {
	for name, endpoint := range map[string]Endpoint{
		"a class too many": {Class: MaxClasses}, "a negative class": {Class: -1},
		"more than all": {Share: 101}, "less than none": {Share: -1},
	} {
		state := State{Endpoints: []Endpoint{endpoint}}
		if err := state.validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// A path's slot may mean another path to the next agent.
func TestInheritedHealthIsThatOfPathsAndNotOfSlots(t *testing.T) {
	before := inheritedHealth{names: [slots]string{"blue", "green", "red"}}
	before.value.Dead, before.value.Bad[3] = 0b101, 0b011
	after := before.valueFor(map[string]uint8{"red": 0, "blue": 2, "yellow": 1})
	expected := uplink.ToUplinkHealth{Dead: 0b101}
	expected.Bad[3] = 0b100
	if after != expected {
		t.Errorf("%+v instead of %+v", after, expected)
	}
}
