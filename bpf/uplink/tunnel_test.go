// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
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

const (
	vxlanPort  = 8472
	genevePort = 6081
	// ofThePod is the tc_index of a packet of the pod's that came out of a tunnel's device.
	ofThePod = uplink.OriginTunnel | uplink.OriginMayHaveFlows | uplink.OriginEndpoint | thePod
)

// tunnelKinds are all that are looked into, by their names.
var tunnelKinds = map[string]packettest.Tunnel{
	"VXLAN":                 {Kind: packettest.VXLAN, Port: vxlanPort},
	"VXLAN with a policy":   {Kind: packettest.VXLAN, Port: vxlanPort, Flags: pointer(0x88)},
	"Geneve":                {Kind: packettest.Geneve, Port: genevePort},
	"Geneve with options":   {Kind: packettest.Geneve, Port: genevePort, Options: make([]byte, 60)},
	"Geneve of IP":          {Kind: packettest.GeneveOfIP, Port: genevePort},
	"IP in IP":              {Kind: packettest.IPInIP},
	"IP in IP with options": {Kind: packettest.IPInIP, IPOptions: []byte{1, 1, 1, 1}, Extensions: []packettest.Extension{packettest.Options(packettest.DestinationOptions, 1)}},
}

// between is the tunnel from the node to its peer, by blue, with outer headers of this
// version.
func between(tunnel packettest.Tunnel, version int) packettest.Tunnel {
	tunnel.From = netip.MustParseAddr(nodeAddress(blue, 1, version))
	tunnel.To = netip.MustParseAddr(nodeAddress(blue, 2, version))
	return tunnel
}

func back(tunnel packettest.Tunnel) packettest.Tunnel {
	tunnel.From, tunnel.To = tunnel.To, tunnel.From
	return tunnel
}

// forEachTunnel runs a test for each kind of tunnel, and both versions of both headers.
func forEachTunnel(t *testing.T, f func(t *testing.T, tunnel packettest.Tunnel, e ends)) {
	for name, tunnel := range tunnelKinds {
		for _, outer := range versions {
			for _, inner := range versions {
				t.Run(fmt.Sprintf("%s, IPv%d over IPv%d", name, inner, outer), func(t *testing.T) {
					f(t, between(tunnel, outer), endsOf[inner])
				})
			}
		}
	}
}

// setTunnels tells the programs of tunnels of all kinds.
func (n *node) setTunnels(t testutil.TB) {
	t.Helper()
	value := uplink.ToUplinkTunnels{Kinds: uplink.TunnelVxlan | uplink.TunnelGeneve | uplink.TunnelIP}
	value.Port[0], value.Kind[0] = bigEndian(genevePort), uplink.TunnelGeneve
	value.Port[7], value.Kind[7] = bigEndian(vxlanPort), uplink.TunnelVxlan
	value.Filter = uplink.PortBit(value.Port[0]) | uplink.PortBit(value.Port[7])
	put(t, n.maps.Tunnels, uint32(0), value)
}

// withTunnels is reset, and the pod has no path but green.
func (n *node) withTunnels(t testutil.TB) {
	t.Helper()
	n.reset(t)
	n.setTunnels(t)
	n.selectPod(t, weights(0, 1, 0))
}

// marking is to_uplink of packets with this tc_index.
func (n *node) marking(t testutil.TB, tcIndex int32) *ebpf.Program {
	t.Helper()
	if known, ok := n.marked[tcIndex]; ok {
		return known.Program
	}
	m, err := packettest.NewMarked(n.to, tcIndex)
	require.NoError(t, err)
	n.marked[tcIndex] = m
	return m.Program
}

// egressOf is egress of a packet with this tc_index.
func (n *node) egressOf(t testutil.TB, path int, tcIndex int32, frame []byte) verdict {
	t.Helper()
	return n.run(t, n.marking(t, tcIndex), frame, skBuff{Ifindex: n.nics[path]})
}

// beginThrough begins a flow of the pod on green through a tunnel.
func (n *node) beginThrough(t testutil.TB, tunnel packettest.Tunnel, e ends) {
	t.Helper()
	n.egressOf(t, blue, ofThePod, tunnel.Frame(e.syn(capable(1)).frame()))
	n.ingress(t, green, back(tunnel).Frame(e.synAck(capableWithKey(key)).frame()))
	n.egressOf(t, green, ofThePod, tunnel.Frame(e.third().frame()))
}

func TestSegmentsInTunnelsFollowTheirFlow(t *testing.T) {
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		n.beginThrough(t, tunnel, e)
		require.Equal(t, 1, n.countLiving(t))
		flow := n.mustFlow(t, e.out())
		require.Equal(t, []int{thePeer, green, initiator, thePod}, []int{int(flow.Peer), int(flow.Path), int(flow.Role), int(flow.Endpoint)})
		require.Equal(t, tokenOf(key), flow.Token)
		data := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 1000) })
		frame := tunnel.Frame(data.frame())
		require.Equal(t, redirect, n.egressOf(t, blue, ofThePod, frame), "leaving by another NIC")
		require.Equal(t, next, n.egressOf(t, green, ofThePod, frame), "leaving by the path's NIC")
		require.EqualValues(t, data.sequence+1000, n.mustFlow(t, e.out()).Sent)
		n.ingress(t, green, back(tunnel).Frame(e.out().flip().with(func(s *segment) { s.sequence, s.flags = answerNumber+1, fin|ack }).frame()))
		n.egressOf(t, green, ofThePod, tunnel.Frame(e.out().with(func(s *segment) { s.flags = fin | ack }).frame()))
		require.EqualValues(t, endedBoth, n.mustFlow(t, e.out()).Ended)
	})
}

func TestAnswersLeaveTunnelsWhereTheirSYNCameIn(t *testing.T) {
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		n.ingress(t, red, back(tunnel).Frame(e.syn(capable(1)).flip().frame()))
		require.EqualValues(t, thePeer, n.mustFlow(t, e.out()).Peer)
		answer := tunnel.Frame(e.synAck(capableWithKey(key)).flip().frame())
		require.Equal(t, redirect, n.egressOf(t, blue, ofThePod, answer))
		require.Equal(t, next, n.egressOf(t, red, ofThePod, answer))
	})
}

// What forwarded packets of pods and the node's own datagrams look like is not what counts.
func TestOnlyWhatATunnelsDeviceSentIsATunnels(t *testing.T) {
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		frame := tunnel.Frame(e.syn(capable(1)).frame())
		require.Equal(t, next, n.egress(t, blue, frame))
		n.run(t, n.to, frame, skBuff{Ifindex: n.nics[blue], IngressIfindex: podInterface})
		n.egressOf(t, blue, ofThePod, frame)
		require.Equal(t, 1, n.countFlows(t), "the test shows nothing")
		n.reset(t)
		n.setTunnels(t)
		n.egress(t, blue, frame)
		n.run(t, n.marking(t, ofThePod), frame, skBuff{Ifindex: n.nics[blue], IngressIfindex: podInterface})
		n.egressOf(t, blue, uplink.OriginTunnel|thePod, frame)
		require.Zero(t, n.countFlows(t))
	})
}

func TestTunnelsToStrangersBeginNoFlow(t *testing.T) {
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		tunnel.To = tunnel.To.Next()
		require.Equal(t, next, n.egressOf(t, blue, ofThePod, tunnel.Frame(e.syn(capable(1)).frame())))
		n.ingress(t, red, back(tunnel).Frame(e.syn(capable(1)).flip().frame()))
		require.Zero(t, n.countFlows(t))
	})
}

// A SYN can come from another node than the one to which its answer goes.
func TestTheClusterNetworkSaysToWhichNodeAnAnswerGoes(t *testing.T) {
	const otherPeer = 9
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		other := tunnel
		other.To = other.To.Next()
		put(t, n.maps.PeerAddresses, address(other.To), uint32(otherPeer))
		n.ingress(t, red, back(other).Frame(e.syn(capable(1)).flip().frame()))
		require.EqualValues(t, otherPeer, n.mustFlow(t, e.out()).Peer)
		n.egressOf(t, blue, ofThePod, tunnel.Frame(e.synAck(capableWithKey(key)).flip().frame()))
		require.EqualValues(t, thePeer, n.mustFlow(t, e.out()).Peer)
	})
}

// serviceOption is that by which Cilium tells the backend's node in Geneve which Service a client
// outside of the cluster has asked (DSR): that node answers it directly.
func serviceOption(service netip.AddrPort) []byte {
	option := append([]byte{0x01, 0x4b, 0x81, byte(len(service.Addr().AsSlice())+4) / 4}, service.Addr().AsSlice()...)
	return binary.BigEndian.AppendUint16(append(option, 0, 0), service.Port())
}

func TestAnswersToWhomAnotherNodeHasPassedOnKeepTheirWay(t *testing.T) {
	n := newNode(t)
	outside := map[int]netip.AddrPort{4: netip.MustParseAddrPort("192.0.2.9:5555"), 6: netip.MustParseAddrPort("[2001:db8::9]:5555")}
	for _, outer := range versions {
		forEachVersion(t, func(t *testing.T, version int, e ends) {
			n.withTunnels(t)
			client := ends{pod: e.pod, other: outside[version]}
			tunnel := between(packettest.Tunnel{Kind: packettest.Geneve, Port: genevePort, Options: serviceOption(outside[version])}, outer)
			incoming := func(s segment) { n.ingress(t, red, back(tunnel).Frame(s.frame())) }
			incoming(client.syn(capable(1)).flip())
			require.EqualValues(t, thePeer, n.mustFlow(t, client.out()).Peer, "as the option hides it")
			answer := client.synAck(capableWithKey(key)).flip()
			require.Equal(t, next, n.egress(t, blue, answer.frame()))
			incoming(client.out().flip())
			require.Equal(t, next, n.egress(t, blue, client.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 1000) }).frame()))
		})
	}
}

func TestForgedPacketsInTunnelsChangeNoFlow(t *testing.T) {
	const forged = uplink.OriginTunnel | uplink.OriginMayHaveFlows | uplink.OriginForged | otherInterface
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		n.beginThrough(t, tunnel, e)
		n.egressOf(t, green, ofThePod, tunnel.Frame(e.out().frame()))
		before := *n.mustFlow(t, e.out())
		for _, s := range []segment{
			e.syn(capable(1)).with(func(s *segment) { s.sequence = 4242 }),
			e.out().with(func(s *segment) { s.flags = rst | ack }),
			e.out().with(func(s *segment) { s.flags = fin | ack }),
			e.port(41234).syn(capable(1)),
		} {
			n.egressOf(t, green, forged, tunnel.Frame(s.frame()))
		}
		require.Equal(t, before, *n.mustFlow(t, e.out()))
		require.Equal(t, 1, n.countFlows(t))
	})
}

// notUnderstood are changes of a tunnel that has a SYN, which make it pass.
var notUnderstood = map[string]func(*packettest.Tunnel){
	"VXLAN without a network":   func(w *packettest.Tunnel) { w.Flags = pointer(0) },
	"VXLAN of another protocol": func(w *packettest.Tunnel) { w.Flags = pointer(0x0c) },
	"another port":              func(w *packettest.Tunnel) { w.Port++ },
	"the port 0":                func(w *packettest.Tunnel) { w.Port = 0 },
	"a port of another kind":    func(w *packettest.Tunnel) { w.Port = genevePort },
	"a fragment":                func(w *packettest.Tunnel) { w.Fragment = 0x2000 },
	"a later fragment":          func(w *packettest.Tunnel) { w.Fragment = 0x0010 },
	"a tag":                     func(w *packettest.Tunnel) { w.VLAN = 10 },
	"IP in IP":                  func(w *packettest.Tunnel) { w.Kind = packettest.IPInIP },
	"Geneve of its operators":   func(w *packettest.Tunnel) { w.Kind, w.Port, w.Flags = packettest.Geneve, genevePort, pointer(0x80) },
	"Geneve of no whole header": func(w *packettest.Tunnel) {
		w.Kind, w.Port, w.Options = packettest.Geneve, genevePort, make([]byte, 400)
	},
}

func TestTunnelsThatAreNotUnderstoodPass(t *testing.T) {
	n := newNode(t)
	for name, change := range notUnderstood {
		t.Run(name, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.withTunnels(t)
				value := lookup[uplink.ToUplinkTunnels](t, n.maps.Tunnels, uint32(0))
				value.Kinds &^= uplink.TunnelIP
				put(t, n.maps.Tunnels, uint32(0), *value)
				tunnel := between(tunnelKinds["VXLAN"], 4)
				change(&tunnel)
				require.Equal(t, next, n.egressOf(t, blue, ofThePod, tunnel.Frame(e.syn(capable(1)).frame())))
				n.ingress(t, red, back(tunnel).Frame(e.syn(capable(1)).flip().frame()))
				require.Zero(t, n.countFlows(t))
			})
		})
	}
}

func TestWhatIsNoSubflowWithinATunnelBeginsNone(t *testing.T) {
	n := newNode(t)
	for name, c := range unlike {
		for _, version := range versions {
			if c.version != 0 && c.version != version {
				continue
			}
			t.Run(fmt.Sprintf("%s, IPv%d", name, version), func(t *testing.T) {
				n.withTunnels(t)
				s := endsOf[version].syn(capable(1)).with(c.change)
				tunnel := between(tunnelKinds["VXLAN"], 4)
				n.egressOf(t, blue, ofThePod, tunnel.Frame(s.frame()))
				n.ingress(t, red, back(tunnel).Frame(s.flip().frame()))
				require.Zero(t, n.countFlows(t))
			})
		}
	}
}

func TestTruncatedTunnelsPass(t *testing.T) {
	n := newNode(t)
	forEachTunnel(t, func(t *testing.T, tunnel packettest.Tunnel, e ends) {
		n.withTunnels(t)
		frame, incoming := tunnel.Frame(e.syn(capable(1)).frame()), back(tunnel).Frame(e.syn(capable(1)).flip().frame())
		for length := range frame {
			if takesTestRun(frame[:length]) {
				n.egressOf(t, blue, ofThePod, frame[:length])
				n.ingress(t, red, incoming[:length])
			}
		}
		require.Zero(t, n.countFlows(t))
	})
}

func tunnelSeeds() (frames [][]byte) {
	for _, tunnel := range tunnelKinds {
		for _, version := range versions {
			for _, e := range endsOf {
				there := between(tunnel, version)
				frames = append(frames, there.Frame(e.syn(capable(1)).frame()), there.Frame(e.out().frame()),
					back(there).Frame(e.syn(join(token)).flip().frame()), back(there).Frame(e.synAck(capableWithKey(key)).frame()))
			}
		}
	}
	for _, change := range notUnderstood {
		tunnel := between(tunnelKinds["VXLAN"], 4)
		change(&tunnel)
		frames = append(frames, tunnel.Frame(endsOf[4].syn(capable(1)).frame()))
	}
	return frames
}
