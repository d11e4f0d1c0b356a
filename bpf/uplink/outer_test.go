// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// ofNode is an address of the node (1) or its peer (2) that is on no path.
func ofNode(node, version int) netip.Addr {
	if version == 6 {
		return netip.MustParseAddr(fmt.Sprintf("fd00:99::%d", node))
	}
	return netip.MustParseAddr(fmt.Sprintf("10.99.0.%d", node))
}

func onPath(path, node, version int) netip.Addr {
	return netip.MustParseAddr(nodeAddress(path, node, version))
}

// withRouted is withTunnels, green is a path over routers, and the overlay is between
// addresses that are on no path.
func (n *node) withRouted(t testutil.TB) {
	t.Helper()
	n.withTunnels(t)
	value := lookup[uplink.ToUplinkNode](t, n.maps.Node, uint32(0))
	value.Routed = 1 << green
	put(t, n.maps.Node, uint32(0), *value)
	for index, number := range map[uint32]int{uplink.OuterOfThisNode: 1, thePeer: 2} {
		var outer uplink.ToUplinkOuter
		for path := range paths {
			outer.Ipv4[path], outer.Ipv6[path] = address(onPath(path, number, 4)), address(onPath(path, number, 6))
		}
		outer.Ipv4[uplink.OuterOfNode], outer.Ipv6[uplink.OuterOfNode] = address(ofNode(number, 4)), address(ofNode(number, 6))
		put(t, n.maps.Outers, index, outer)
	}
	for _, version := range versions {
		put(t, n.maps.PeerAddresses, address(ofNode(2, version)), uint32(thePeer))
	}
}

// changed is a run that may change addresses: what the frame is afterwards.
func (n *node) changed(t testutil.TB, program *ebpf.Program, frame []byte, context skBuff) (verdict, []byte) {
	t.Helper()
	n.answersOthers(t)
	options := ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: context}
	var result uint32
	require.NoError(t, n.Do(func() (err error) {
		result, err = program.Run(&options)
		return err
	}))
	return verdict(int32(result)), options.DataOut
}

// leaving is a packet of the pod's that came out of the tunnel's device.
func (n *node) leaving(t testutil.TB, path int, frame []byte) (verdict, []byte) {
	t.Helper()
	return n.changed(t, n.marking(t, ofThePod), frame, skBuff{Ifindex: n.nics[path]})
}

func (n *node) arriving(t testutil.TB, path int, frame []byte) []byte {
	t.Helper()
	v, after := n.changed(t, n.from, frame, skBuff{Ifindex: n.nics[path], IngressIfindex: n.nics[path]})
	require.Equal(t, next, v)
	return after
}

func from(tunnel packettest.Tunnel, from, to netip.Addr) packettest.Tunnel {
	tunnel.From, tunnel.To = from, to
	return tunnel
}

// forEachRouted runs a test for each kind of tunnel, both versions of both headers and all
// that a UDP header may have for a checksum. The tunnels are that of the overlay, and what
// is to be seen on green.
func forEachRouted(t *testing.T, f func(t *testing.T, overlay, wire packettest.Tunnel, e ends)) {
	checks := map[string]packettest.Check{"": packettest.NoCheck, ", checked": packettest.WholeCheck}
	for name, tunnel := range tunnelKinds {
		for suffix, check := range checks {
			if tunnel.Kind == packettest.IPInIP && check != packettest.NoCheck {
				continue
			}
			tunnel.Check = check
			for _, outer := range versions {
				for _, inner := range versions {
					t.Run(fmt.Sprintf("%s, IPv%d over IPv%d%s", name, inner, outer, suffix), func(t *testing.T) {
						overlay := from(tunnel, ofNode(1, outer), ofNode(2, outer))
						f(t, overlay, from(tunnel, onPath(green, 1, outer), onPath(green, 2, outer)), endsOf[inner])
					})
				}
			}
		}
	}
}

func TestOnARoutedPathTunnelsGoBetweenTheAddressesOfThePath(t *testing.T) {
	n := newNode(t)
	forEachRouted(t, func(t *testing.T, overlay, wire packettest.Tunnel, e ends) {
		n.withRouted(t)
		v, after := n.leaving(t, blue, overlay.Frame(e.syn(capable(1)).frame()))
		require.Equal(t, redirect, v)
		require.Equal(t, wire.Frame(e.syn(capable(1)).frame()), after, "a SYN")
		v, again := n.leaving(t, green, after)
		require.Equal(t, next, v)
		require.Equal(t, after, again, "at the path's NIC")
		after = n.arriving(t, green, back(wire).Frame(e.synAck(capableWithKey(key)).frame()))
		require.Equal(t, back(overlay).Frame(e.synAck(capableWithKey(key)).frame()), after, "what arrives")
		n.leaving(t, blue, overlay.Frame(e.third().frame()))
		require.Equal(t, 1, n.countLiving(t))
		data := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 1001) }).frame()
		_, after = n.leaving(t, blue, overlay.Frame(data))
		require.Equal(t, wire.Frame(data), after, "data")
	})
}

// As where a detour leads there, or the overlay's own route.
func TestAlsoWhatIsAtTheRoutedPathsNICAlreadyGetsItsAddresses(t *testing.T) {
	n := newNode(t)
	forEachRouted(t, func(t *testing.T, overlay, wire packettest.Tunnel, e ends) {
		n.withRouted(t)
		syn := e.syn(capable(1)).frame()
		v, after := n.leaving(t, green, overlay.Frame(syn))
		require.Equal(t, redirect, v, "its next hop is another")
		require.Equal(t, wire.Frame(syn), after)
		v, after = n.leaving(t, green, overlay.Frame(syn))
		require.Equal(t, redirect, v, "the first one did not come by again")
		require.Equal(t, wire.Frame(syn), after)
		v, again := n.leaving(t, green, after)
		require.Equal(t, next, v)
		require.Equal(t, after, again)
	})
}

func TestAnswersOnARoutedPathGoWhereTheirSYNCameIn(t *testing.T) {
	n := newNode(t)
	forEachRouted(t, func(t *testing.T, overlay, wire packettest.Tunnel, e ends) {
		n.withRouted(t)
		syn := e.syn(capable(1)).flip().frame()
		require.Equal(t, back(overlay).Frame(syn), n.arriving(t, green, back(wire).Frame(syn)))
		require.EqualValues(t, thePeer, n.mustFlow(t, e.out()).Peer)
		answer := e.synAck(capableWithKey(key)).flip().frame()
		v, after := n.leaving(t, blue, overlay.Frame(answer))
		require.Equal(t, redirect, v)
		require.Equal(t, wire.Frame(answer), after)
	})
}

// What TCP gives the NIC to divide has a UDP checksum that is only begun.
func TestLargePacketsOnARoutedPathKeepTheChecksumThatIsBegun(t *testing.T) {
	n := newNode(t)
	for _, outer := range versions {
		n.withRouted(t)
		tunnel := tunnelKinds["VXLAN"]
		tunnel.Check = packettest.BareCheck
		overlay := from(tunnel, ofNode(1, outer), ofNode(2, outer))
		n.leaving(t, blue, overlay.Frame(endsOf[4].syn(capable(1)).frame()))
		n.ingress(t, blue, back(overlay).Frame(endsOf[4].synAck(capableWithKey(key)).frame()))
		n.leaving(t, blue, overlay.Frame(endsOf[4].third().frame()))
		data := endsOf[4].out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 2000) }).frame()
		v, after := n.changed(t, n.marking(t, ofThePod), overlay.Frame(data), skBuff{Ifindex: n.nics[blue], GSOSize: 1000, GSOSegs: 2})
		require.Equal(t, redirect, v)
		require.Equal(t, from(tunnel, onPath(green, 1, outer), onPath(green, 2, outer)).Frame(data), after)
	}
}

// A checksum that is whole looks as if it were only begun once in a while: as here, where no
// NIC is to finish anything. Where the inner one looks so too nobody knows, and the packet
// goes as it would have gone.
func TestAWholeChecksumThatLooksBegunIsWhole(t *testing.T) {
	n := newNode(t)
	tunnel := tunnelKinds["VXLAN"]
	tunnel.Check = packettest.BareCheck
	whole := endsOf[4].out().frame()
	begun := bytes.Clone(whole)
	binary.BigEndian.PutUint16(begun[34+16:], packettest.Sum(append(bytes.Clone(whole[26:34]), 0, 6, 0, byte(len(whole)-34))))
	for _, outer := range versions {
		for what, data := range map[string][]byte{"both whole": whole, "the inner one begun": begun} {
			n.withRouted(t)
			overlay := from(tunnel, ofNode(1, outer), ofNode(2, outer))
			n.leaving(t, blue, overlay.Frame(endsOf[4].syn(capable(1)).frame()))
			n.ingress(t, blue, back(overlay).Frame(endsOf[4].synAck(capableWithKey(key)).frame()))
			n.leaving(t, blue, overlay.Frame(endsOf[4].third().frame()))
			before := overlay.Frame(data)
			v, after := n.leaving(t, blue, before)
			if what == "the inner one begun" {
				require.Equal(t, next, v)
				require.Equal(t, before, after)
				continue
			}
			require.Equal(t, redirect, v)
			udp, addresses := map[int]int{4: 34, 6: 54}[outer], map[int]int{4: 8, 6: 32}[outer]
			covered := func(frame []byte) uint16 {
				return packettest.Sum(append(bytes.Clone(frame[udp-addresses:udp]), frame[udp+6:udp+8]...))
			}
			require.NotEqual(t, before[udp-addresses:udp], after[udp-addresses:udp], "the test shows nothing")
			require.Equal(t, covered(before), covered(after), "IPv%d: addresses and checksum together", outer)
		}
	}
}

// What has other addresses than the nodes have is not ours to change, nor is what comes by
// another NIC than the one that the addresses are of.
func TestOtherPacketsKeepTheirAddresses(t *testing.T) {
	n := newNode(t)
	forEachRouted(t, func(t *testing.T, overlay, wire packettest.Tunnel, e ends) {
		n.withRouted(t)
		outer := 4
		if overlay.From.Is6() {
			outer = 6
		}
		stranger, own := ofNode(77, outer), onPath(green, 1, outer)
		syn := e.syn(capable(1)).flip().frame()
		for what, tunnel := range map[string]packettest.Tunnel{
			"from a stranger":               from(overlay, stranger, own),
			"from another path's address":   from(overlay, onPath(red, 2, outer), own),
			"for another path's address":    from(overlay, onPath(green, 2, outer), onPath(red, 1, outer)),
			"from the peer's own address":   from(overlay, ofNode(2, outer), own),
			"for the node's own address":    from(overlay, onPath(green, 2, outer), ofNode(1, outer)),
			"as the overlay sends it":       back(overlay),
			"from this node's own address":  from(overlay, own, onPath(green, 2, outer)),
			"from and to this node's green": from(overlay, own, own),
		} {
			frame := tunnel.Frame(syn)
			require.Equal(t, frame, n.arriving(t, green, frame), what)
		}
		frame := back(wire).Frame(syn)
		require.Equal(t, frame, n.arriving(t, red, frame), "by another NIC")
		require.Equal(t, back(overlay).Frame(syn), n.arriving(t, green, frame), "the test shows nothing")
		out := e.syn(capable(1)).frame()
		for what, tunnel := range map[string]packettest.Tunnel{
			"from a stranger":        from(overlay, stranger, ofNode(2, outer)),
			"by other addresses":     from(overlay, onPath(red, 1, outer), onPath(red, 2, outer)),
			"from the path's to the": from(overlay, own, ofNode(2, outer)),
		} {
			frame := tunnel.Frame(out)
			v, after := n.leaving(t, blue, frame)
			require.Equal(t, next, v, what)
			require.Equal(t, frame, after, what)
		}
	})
}

func TestWithoutAddressesOfItsOwnNothingIsChanged(t *testing.T) {
	n := newNode(t)
	forEachRouted(t, func(t *testing.T, overlay, wire packettest.Tunnel, e ends) {
		for _, of := range []uint32{uplink.OuterOfThisNode, thePeer} {
			n.withRouted(t)
			put(t, n.maps.Outers, of, uplink.ToUplinkOuter{})
			frame := overlay.Frame(e.syn(capable(1)).frame())
			v, after := n.leaving(t, blue, frame)
			require.Equal(t, next, v)
			require.Equal(t, frame, after)
			frame = back(wire).Frame(e.syn(capable(1)).flip().frame())
			require.Equal(t, frame, n.arriving(t, green, frame))
		}
	})
}

// Routers do not know pods' addresses.
func TestWhatIsInNoTunnelDoesNotGoOverARouter(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, _ int, e ends) {
		n.withRouted(t)
		n.selectPod(t, weights(1, 1, 0))
		peer := lookup[uplink.ToUplinkPeer](t, n.maps.Peers, uint32(thePeer))
		peer.Beyond = 1 << green
		put(t, n.maps.Peers, uint32(thePeer), *peer)
		for port := range uint16(4) {
			e := e.port(42000 + port)
			require.Equal(t, next, n.egress(t, blue, e.syn(capable(1)).frame()))
			require.EqualValues(t, blue, n.mustFlow(t, e.out()).Path)
		}
		peer.Beyond = 0
		put(t, n.maps.Peers, uint32(thePeer), *peer)
		used := map[uint8]bool{}
		for port := range uint16(4) {
			e := e.port(43000 + port)
			n.egress(t, blue, e.syn(capable(1)).frame())
			used[n.mustFlow(t, e.out()).Path] = true
		}
		require.Equal(t, map[uint8]bool{blue: true, green: true}, used, "between neighbours it does")
	})
}
