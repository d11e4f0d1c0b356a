// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

const (
	theOutside    = 9 // a peer
	anotherPod    = 2
	podsInterface = 4711
	nearInterface = 4712 // of another pod
)

// outsideOf are the pod and a place outside, by the version of IP.
func outsideOf(version int) ends {
	place := map[int]string{4: "192.0.2.200", 6: "2001:db8::c8"}[version]
	return ends{endsOf[version].pod, addrPort(place, 80)}
}

// name makes these ranges destinations outside of an endpoint; 0 for any.
func (n *node) name(t testutil.TB, endpoint uint32, ranges ...string) {
	t.Helper()
	for _, text := range ranges {
		destination := netip.MustParsePrefix(text)
		bits := destination.Bits()
		if destination.Addr().Is4() {
			bits += 96
		}
		key := uplink.ToUplinkOutsideKey{Bits: uint32(uplink.OutsideEndpointBits + bits), Endpoint: endpoint, Address: address(destination.Addr())}
		put(t, n.maps.Outside, key, uint32(theOutside))
	}
}

// withOutside resets the node and gives all paths a gateway to what the pod's policy names.
func (n *node) withOutside(t testutil.TB) {
	t.Helper()
	n.reset(t)
	clearMap[uplink.ToUplinkOutsideKey](t, n.maps.Outside)
	value := uplink.ToUplinkPeer{Ipv4Paths: allPaths, Ipv6Paths: allPaths}
	for path := range paths {
		value.Ipv4[path] = address(netip.MustParseAddr(nodeAddress(path, 99, 4))).Word[3]
		value.Ipv6[path] = address(netip.MustParseAddr(nodeAddress(path, 99, 6)))
	}
	put(t, n.maps.Peers, uint32(theOutside), value)
	for _, endpoint := range []uint32{thePod, 0} {
		n.name(t, endpoint, "192.0.2.128/25", "2001:db8::80/121")
	}
}

// isBehind has the pod's packets come by its interface, whatever their address is by now.
func (n *node) isBehind(t testutil.TB) {
	t.Helper()
	var place [16]byte
	binary.BigEndian.PutUint16(place[:], uplink.OutsideInterface)
	binary.BigEndian.PutUint32(place[12:], podsInterface)
	put(t, n.maps.Endpoints, address(netip.AddrFrom16(place)), uplink.ToUplinkEndpoint{Id: thePod, Weights: weights(1, 1, 1), Interface: podsInterface})
	for path := range paths {
		for _, version := range versions {
			n.noteLocal(t, netip.MustParseAddr(nodeAddress(path, 1, version)))
		}
	}
}

// forwards runs to_uplink on a frame that came into the node by an interface and leaves by a path.
func (n *node) forwards(t testutil.TB, by uint32, path int, s segment) verdict {
	t.Helper()
	return n.run(t, n.to, s.frame(), skBuff{Ifindex: n.nics[path], IngressIfindex: by})
}

func TestConnectionsToNamedDestinationsOutsideAreSpread(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, _ ends) {
		n.withOutside(t)
		putConnection(t, n, token)
		e, seen := outsideOf(version), map[uint8]bool{}
		for i := range paths {
			joining := e.port(uint16(41000 + i))
			n.egress(t, blue, joining.syn(join(token)).frame())
			flow := n.mustFlow(t, joining.out())
			require.EqualValues(t, theOutside, flow.Peer)
			seen[flow.Path] = true
			n.isAnswered(t, joining, joinAnswer())
			for path := range paths {
				want := redirect
				if path == int(flow.Path) {
					want = next
				}
				if v := n.egress(t, path, joining.out().frame()); v != want {
					t.Errorf("at path %d the verdict for a flow of %d is %d", path, flow.Path, v)
				}
			}
		}
		require.Len(t, seen, paths)
	})
}

func TestDestinationsThatAreNotNamedAreLeftAlone(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.withOutside(t)
		n.name(t, thePod, "10.20.0.0/16", "fd00:20::/32") // with the NIC's own link
		n.name(t, anotherPod, "192.0.2.0/24", "2001:db8::/64")
		for name, place := range map[string]map[int]string{
			"beside what is named": {4: "192.0.2.7", 6: "2001:db8::7"},
			"on the NIC's link":    {4: nodeAddress(blue, 50, 4), 6: nodeAddress(blue, 50, 6)},
		} {
			for option, bytes := range map[string][]byte{"MP_CAPABLE": capable(1), "MP_JOIN": join(token)} {
				s := ends{e.pod, addrPort(place[version], 80)}.syn(bytes)
				if v := n.both(t, s); v != next || n.countFlows(t) != 0 {
					t.Errorf("%s %s: verdict %d, %d flows", option, name, v, n.countFlows(t))
				}
			}
		}
		plain := outsideOf(version).syn(nil)
		if v := n.both(t, plain); v != next || n.countFlows(t) != 0 {
			t.Errorf("plain TCP: verdict %d, %d flows", v, n.countFlows(t))
		}
	})
}

// A path whose gateway does not answer is left out, and where none does the packet leaves as
// the node's routes say.
func TestPathsWithoutAGatewayCarryNothingOutside(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, _ ends) {
		n.withOutside(t)
		e := outsideOf(version)
		n.egress(t, blue, e.syn(capable(1)).frame())
		n.isAnswered(t, e, capableWithKey(key))
		leads := func(up uint8) {
			value := lookup[uplink.ToUplinkPeer](t, n.maps.Peers, uint32(theOutside))
			value.Ipv4Paths, value.Ipv6Paths = up, up
			put(t, n.maps.Peers, uint32(theOutside), *value)
		}
		leads(1 << red)
		require.Equal(t, redirect, n.egress(t, blue, e.out().frame()))
		require.Equal(t, next, n.egress(t, red, e.out().frame()))
		leads(0)
		require.Equal(t, next, n.egress(t, blue, e.out().frame()))
	})
}

func TestMasqueradedConnectionsAreTheirPodsWhoseInterfaceTheyComeBy(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, inside ends) {
		node := addrPort(nodeAddress(blue, 1, version), 40000)
		e := ends{node, outsideOf(version).other}
		for name, c := range map[string]struct {
			by   uint32
			ends ends
			ours bool
		}{
			"the pod's":                  {podsInterface, e, true},
			"another pod's":              {nearInterface, e, false},
			"the node's own":             {0, e, false},
			"the pod's to another node":  {podsInterface, ends{node, inside.other}, false},
			"the pod's to somewhere not": {podsInterface, ends{node, addrPort(map[int]string{4: "192.0.2.7", 6: "2001:db8::7"}[version], 80)}, false},
		} {
			t.Run(name, func(t *testing.T) {
				n.withOutside(t)
				n.isBehind(t)
				putConnection(t, n, token)
				n.forwards(t, c.by, blue, c.ends.syn(join(token)))
				flow := n.flow(t, c.ends.out())
				require.Equal(t, c.ours, flow != nil)
				if flow != nil {
					require.EqualValues(t, thePod, flow.Endpoint)
					require.EqualValues(t, theOutside, flow.Peer)
				}
			})
		}
	})
}

// What comes for a Service has an address of the node's; who answers says whose it is.
func TestConnectionsToServicesAreAnsweredByTheirPathWhereTheirPodIsSelected(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, _ ends) {
		e := ends{addrPort(nodeAddress(blue, 1, version), 80), addrPort(outsideOf(version).other.Addr().String(), 5000)}
		for name, c := range map[string]struct {
			by   uint32
			want verdict
		}{
			"by the pod":       {podsInterface, redirect},
			"by another pod":   {nearInterface, next},
			"by the node":      {0, next},
			"by another's NIC": {n.nics[red], next},
		} {
			t.Run(name, func(t *testing.T) {
				n.withOutside(t)
				n.isBehind(t)
				n.ingress(t, green, e.syn(capable(1)).flip().frame())
				if v := n.forwards(t, c.by, blue, e.synAck(capableWithKey(key)).flip()); v != c.want {
					t.Errorf("the SYN/ACK: verdict %d", v)
				}
				n.ingress(t, green, e.third().flip().frame())
				if v := n.forwards(t, c.by, blue, e.out()); v != c.want {
					t.Errorf("what follows: verdict %d", v)
				}
				if c.want == next && n.countFlows(t) != 0 {
					t.Errorf("%d flows are left", n.countFlows(t))
				}
			})
		}
	})
}

// From elsewhere than what a policy names nobody is answered by another path.
func TestConnectionsFromWhatIsNotNamedAreLeftAlone(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for _, local := range []netip.AddrPort{e.pod, addrPort(nodeAddress(blue, 1, version), 80)} {
			n.withOutside(t)
			n.isBehind(t)
			from := addrPort(map[int]string{4: "192.0.2.7", 6: "2001:db8::7"}[version], 5000)
			n.ingress(t, green, ends{local, from}.syn(capable(1)).flip().frame())
			require.Zero(t, n.countFlows(t))
		}
	})
}
