// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// The keys of the node and of its peer, as their bytes are on the wire.
const (
	ownKey   = 0x1122334455667788
	peersKey = 0x99aabbccddeeff01
)

// moreBytes are what the headers have, by the version of IP.
var moreBytes = map[int]int{4: 20 + 8 + 8, 6: 40 + 8 + 8}

// behindRouters puts the peer into another rack: blue and green lead there over routers, and the
// cluster network's route, by blue, names a router. The NICs have this MTU.
func (n *node) behindRouters(t testutil.TB, mtu uint32) {
	t.Helper()
	n.withRouted(t)
	n.setTunnels(t)
	value := lookup[uplink.ToUplinkNode](t, n.maps.Node, uint32(0))
	value.Routed = 1<<blue | 1<<green
	put(t, n.maps.Node, uint32(0), *value)
	for _, version := range versions {
		require.NoError(t, n.maps.PeerAddresses.Delete(address(onPath(blue, 2, version))), "it is a router's now")
		for number, index := range map[netip.Addr]uint32{endsOf[version].pod.Addr(): uplink.OuterOfThisNode, endsOf[version].other.Addr(): thePeer} {
			put(t, n.maps.PodRanges, uplink.ToUplinkRangeKey{Bits: 128 - 8, Address: address(number)}, index)
		}
	}
	put(t, n.maps.Wrappings, uint32(uplink.OuterOfThisNode), uplink.ToUplinkWrapping{Key: keyOf(ownKey)})
	put(t, n.maps.Wrappings, uint32(thePeer), uplink.ToUplinkWrapping{Key: keyOf(peersKey), Mtu: mtu, Paths: 1<<blue | 1<<green})
	n.selectPod(t, weights(0, 1, 0))
}

// keyOf is a key as a program reads it from a packet.
func keyOf(key uint64) uint64 {
	return binary.NativeEndian.Uint64(binary.BigEndian.AppendUint64(nil, key))
}

func outward(version int) packettest.Encapsulated {
	return packettest.Encapsulated{From: onPath(green, 1, version), To: onPath(green, 2, version), Key: peersKey}
}

func inward(version int) packettest.Encapsulated {
	return packettest.Encapsulated{From: onPath(green, 2, version), To: onPath(green, 1, version), Key: ownKey}
}

// withoutFlow is an encapsulated frame, of which what is to differ from flow to flow is taken out.
func withoutFlow(t *testing.T, frame []byte, version int) []byte {
	t.Helper()
	frame = bytes.Clone(frame)
	at := etherLength + ipv4Length
	if version == 6 {
		at = etherLength + ipv6Length
		frame[15], frame[16], frame[17] = frame[15]&0xf0, 0, 0
	}
	require.GreaterOrEqual(t, binary.BigEndian.Uint16(frame[at:]), uint16(49152), "the source's port")
	copy(frame[at:], []byte{0xc0, 0})
	return frame
}

// begin has a flow of the pod's live on green.
func (n *node) beginEncapsulated(t *testing.T, e ends, version int) {
	t.Helper()
	n.changed(t, n.to, e.syn(capable(1)).frame(), skBuff{Ifindex: n.nics[blue]})
	n.arriving(t, green, inward(version).Frame(e.synAck(capableWithKey(key)).frame()))
	n.changed(t, n.to, e.third().frame(), skBuff{Ifindex: n.nics[blue]})
	require.Equal(t, 1, n.countLiving(t))
}

func data(e ends, length int) []byte {
	return e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, length) }).frame()
}

func TestPodsPacketsAreEncapsulatedWhereARouterLeadsToTheirNode(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 9000)
		syn := e.syn(capable(1)).frame()
		v, after := n.changed(t, n.to, syn, skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, redirect, v)
		require.Equal(t, outward(version).Frame(syn), withoutFlow(t, after, version), "a SYN")
		v, again := n.changed(t, n.to, after, skBuff{Ifindex: n.nics[green]})
		require.Equal(t, next, v, "at the path's NIC")
		require.Equal(t, after, again)
		answer := e.synAck(capableWithKey(key)).frame()
		require.Equal(t, answer, n.arriving(t, green, inward(version).Frame(answer)), "what arrives")
		n.changed(t, n.to, e.third().frame(), skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, 1, n.countLiving(t), "and both have agreed")
		v, after = n.changed(t, n.to, data(e, 1001), skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, redirect, v)
		require.Equal(t, outward(version).Frame(data(e, 1001)), withoutFlow(t, after, version), "data")
	})
}

func TestAnswersAreEncapsulatedOnThePathByWhichTheirSYNCameIn(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 9000)
		syn := e.syn(capable(1)).flip().frame()
		require.Equal(t, syn, n.arriving(t, green, inward(version).Frame(syn)))
		require.EqualValues(t, thePeer, n.mustFlow(t, e.out()).Peer)
		answer := e.synAck(capableWithKey(key)).flip().frame()
		v, after := n.changed(t, n.to, answer, skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, redirect, v)
		require.Equal(t, outward(version).Frame(answer), withoutFlow(t, after, version))
	})
}

func TestAllEncapsulatedPacketsOfAFlowHaveOneSourcePort(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 9000)
		at, used := etherLength+map[int]int{4: ipv4Length, 6: ipv6Length}[version], map[uint16]bool{}
		for port := range uint16(16) {
			e := e.port(40000 + 2*port)
			_, first := n.changed(t, n.to, e.syn(capable(1)).frame(), skBuff{Ifindex: n.nics[blue]})
			_, again := n.changed(t, n.to, e.syn(capable(1)).frame(), skBuff{Ifindex: n.nics[blue]})
			require.Equal(t, first[:at+2], again[:at+2])
			used[binary.BigEndian.Uint16(first[at:])] = true
		}
		require.Greater(t, len(used), 12, "and flows have different ones")
	})
}

func TestWhatHasNoRoomToBeEncapsulatedTakesTheClusterNetworksRoute(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 1500)
		n.beginEncapsulated(t, e, version)
		headers := len(data(e, 0)) - etherLength
		fits := data(e, 1500-moreBytes[version]-headers)
		v, after := n.changed(t, n.to, fits, skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, redirect, v)
		require.Len(t, after, etherLength+1500)
		larger := data(e, 1501-moreBytes[version]-headers)
		v, after = n.changed(t, n.to, larger, skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, next, v)
		require.Equal(t, larger, after)
	})
}

// Where the cluster network's route leads to the path's own NIC its routers know the pods.
func TestOnTheRoutesOwnPathPacketsStayAsTheyAre(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, _ int, e ends) {
		n.behindRouters(t, 9000)
		n.selectPod(t, weights(1, 0, 0))
		syn := e.syn(capable(1)).frame()
		v, after := n.changed(t, n.to, syn, skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, next, v)
		require.Equal(t, syn, after)
		require.EqualValues(t, blue, n.mustFlow(t, e.out()).Path)
	})
}

// segmentSize is what a SYN says, whose checksum must be right.
func segmentSize(t *testing.T, frame []byte, version int) int {
	t.Helper()
	tcp := etherLength + map[int]int{4: ipv4Length, 6: ipv6Length}[version]
	addresses := map[int]int{4: 8, 6: 32}[version]
	covered := append(bytes.Clone(frame[tcp-addresses:]), 0, protocolTCP, 0, byte(len(frame)-tcp))
	require.EqualValues(t, 0xffff, packettest.Sum(covered), "the checksum")
	require.Equal(t, []byte{2, 4}, frame[tcp+tcpLength:tcp+tcpLength+2])
	return int(binary.BigEndian.Uint16(frame[tcp+tcpLength+2:]))
}

func TestSegmentsAreAskedToHaveRoomToBeEncapsulated(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		headers := moreBytes[version] + map[int]int{4: ipv4Length, 6: ipv6Length}[version] + tcpLength
		for mtu, wanted := range map[uint32]int{1500: 1500 - headers, 1400: 1400 - headers, 9000: 1460, 500: 1460} {
			// The route's own path, so that the SYN is not encapsulated.
			n.behindRouters(t, mtu)
			n.selectPod(t, weights(1, 0, 0))
			_, after := n.changed(t, n.to, e.syn(capable(1)).frame(), skBuff{Ifindex: n.nics[blue]})
			require.Equal(t, wanted, segmentSize(t, after, version), "a SYN, %d", mtu)
			n.behindRouters(t, mtu)
			n.arriving(t, blue, e.syn(join(7)).flip().frame())
			answer := segment{from: e.pod, to: e.other, sequence: answerNumber, flags: syn | ack, options: usual(joinAnswer()[:4])}
			_, after = n.changed(t, n.to, answer.frame(), skBuff{Ifindex: n.nics[blue]})
			require.Equal(t, wanted, segmentSize(t, after, version), "the answer to a join, %d", mtu)
		}
	})
}

func TestNobodyElsesSegmentsAreAskedToBeSmaller(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, _ int, e ends) {
		n.behindRouters(t, 1500)
		plain := segment{from: e.pod, to: e.other, sequence: firstSYN, flags: syn, options: usual(nil)}.frame()
		other := e.syn(capable(1)).with(func(s *segment) { s.from = netip.AddrPortFrom(e.pod.Addr().Next(), 40000) }).frame()
		for what, frame := range map[string][]byte{"plain TCP": plain, "a pod that is not selected": other} {
			v, after := n.changed(t, n.to, frame, skBuff{Ifindex: n.nics[blue]})
			require.Equal(t, next, v, what)
			require.Equal(t, frame, after, what)
		}
	})
}

func TestWithoutAKeyOrRangesNothingIsEncapsulated(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for what, without := range map[string]func(){
			"an agent that does not know of it": func() { require.NoError(t, n.maps.Wrappings.Delete(uint32(thePeer))) },
			"no key": func() {
				put(t, n.maps.Wrappings, uint32(thePeer), uplink.ToUplinkWrapping{Mtu: 9000, Paths: 1 << green})
			},
			"no pods of the peer": func() {
				require.NoError(t, n.maps.PodRanges.Delete(uplink.ToUplinkRangeKey{Bits: 120, Address: address(e.other.Addr())}))
			},
			"no pods of the node": func() {
				require.NoError(t, n.maps.PodRanges.Delete(uplink.ToUplinkRangeKey{Bits: 120, Address: address(e.pod.Addr())}))
			},
			"no address on the path": func() { put(t, n.maps.Outers, uint32(thePeer), uplink.ToUplinkOuter{}) },
		} {
			n.behindRouters(t, 9000)
			peer := lookup[uplink.ToUplinkPeer](t, n.maps.Peers, uint32(thePeer))
			if what == "an agent that does not know of it" {
				peer.Beyond = 1<<blue | 1<<green
				put(t, n.maps.Peers, uint32(thePeer), *peer)
			}
			without()
			frame := e.syn(capable(1)).frame()
			v, after := n.changed(t, n.to, frame, skBuff{Ifindex: n.nics[blue]})
			require.Equal(t, next, v, what)
			require.Equal(t, frame, after, what)
		}
	})
}

// Whoever else sends such packets has them go to the responder's socket, which reads none.
func TestOnlyWhatAPeerMayHaveEncapsulatedIsDecapsulated(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 9000)
		syn := e.syn(capable(1)).flip()
		fine := inward(version)
		with := func(change func(*packettest.Encapsulated)) packettest.Encapsulated {
			changed := fine
			change(&changed)
			return changed
		}
		frames := map[string][]byte{
			"another key":                 with(func(w *packettest.Encapsulated) { w.Key++ }).Frame(syn.frame()),
			"no key":                      with(func(w *packettest.Encapsulated) { w.Key = 0 }).Frame(syn.frame()),
			"the peer's key":              with(func(w *packettest.Encapsulated) { w.Key = peersKey }).Frame(syn.frame()),
			"another port":                with(func(w *packettest.Encapsulated) { w.Port = 8479 }).Frame(syn.frame()),
			"from a stranger":             with(func(w *packettest.Encapsulated) { w.From = ofNode(77, version) }).Frame(syn.frame()),
			"from another path's address": with(func(w *packettest.Encapsulated) { w.From = onPath(red, 2, version) }).Frame(syn.frame()),
			"from the node's own address": with(func(w *packettest.Encapsulated) { w.From = onPath(green, 1, version) }).Frame(syn.frame()),
			"from the peer's own address": with(func(w *packettest.Encapsulated) { w.From = ofNode(2, version) }).Frame(syn.frame()),
			"for another path's address":  with(func(w *packettest.Encapsulated) { w.To = onPath(red, 1, version) }).Frame(syn.frame()),
			"for the node's own address":  with(func(w *packettest.Encapsulated) { w.To = ofNode(1, version) }).Frame(syn.frame()),
			"from no pod": fine.Frame(syn.with(func(s *segment) {
				s.from = netip.AddrPortFrom(onPath(green, 2, version), 80)
			}).frame()),
			"from a pod of this node": fine.Frame(syn.with(func(s *segment) { s.from = s.to }).frame()),
			"for a pod of the peer's": fine.Frame(syn.with(func(s *segment) { s.to = s.from }).frame()),
			"for the node":            fine.Frame(syn.with(func(s *segment) { s.to = netip.AddrPortFrom(onPath(green, 1, version), 80) }).frame()),
			"for the world":           fine.Frame(syn.with(func(s *segment) { s.to = netip.AddrPortFrom(ofNode(88, version), 80) }).frame()),
			"UDP":                     fine.Frame(syn.with(func(s *segment) { s.protocol = protocolUDP }).frame()),
			"of the other version":    fine.Frame(endsOf[10-version].syn(capable(1)).flip().frame()),
			"twice":                   fine.Frame(fine.Frame(syn.frame())),
			"nothing within":          fine.Frame(syn.frame())[:etherLength+moreBytes[version]],
		}
		if version == 4 {
			frames["a fragment"] = with(func(w *packettest.Encapsulated) { w.Fragment = 0x2000 }).Frame(syn.frame())
			frames["a fragment within"] = fine.Frame(syn.with(func(s *segment) { s.fragment = 0x2000 }).frame())
		}
		for what, frame := range frames {
			require.Equal(t, frame, n.arriving(t, green, frame), what)
			require.Zero(t, n.countFlows(t), what)
		}
	})
}

func TestDecapsulatingIsForThePathsOwnNICAndTheNodesOwnKey(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 9000)
		syn, fine := e.syn(capable(1)).flip(), inward(version)
		frame := fine.Frame(syn.frame())
		require.Equal(t, frame, n.arriving(t, red, frame), "by a path without routers")
		require.Equal(t, frame, n.arriving(t, blue, frame), "by another path")
		require.Equal(t, syn.frame(), n.arriving(t, green, frame), "the test shows nothing")
		require.NoError(t, n.maps.Wrappings.Delete(uint32(uplink.OuterOfThisNode)))
		require.Equal(t, frame, n.arriving(t, green, frame), "at a node without a key")
	})
}

// The meter at the NIC knows such a pod by its address alone.
func TestAPodThatIsKnownByItsAddressAloneOnlyReceivesEncapsulatedPackets(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 9000)
		put(t, n.maps.PodRanges, uplink.ToUplinkRangeKey{Bits: 128, Address: address(e.pod.Addr())}, uint32(uplink.NeverEncapsulated))
		frame := e.syn(capable(1)).frame()
		v, after := n.changed(t, n.to, frame, skBuff{Ifindex: n.nics[blue]})
		require.Equal(t, next, v)
		require.Equal(t, e.syn(capable(1)).frame()[:etherLength], after[:etherLength])
		require.Len(t, after, len(frame))
		answer := e.synAck(capableWithKey(key)).frame()
		require.Equal(t, answer, n.arriving(t, green, inward(version).Frame(answer)))
	})
}

func TestTruncatedEncapsulationsPass(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.behindRouters(t, 9000)
		frame := inward(version).Frame(e.syn(capable(1)).flip().frame())
		for length := etherLength + ipv6Length; length < etherLength+moreBytes[version]+map[int]int{4: ipv4Length, 6: ipv6Length}[version]; length++ {
			require.Equal(t, frame[:length], n.arriving(t, green, frame[:length]), length)
		}
	})
}
