// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/hack/bench/rig"
)

const (
	loopback    = 1 // the interface index of packets of BPF_PROG_TEST_RUN
	elsewhere   = 2
	endpointPod = "10.244.1.2"
	otherPod    = "10.244.1.9"
	remotePod   = "10.244.2.2"
	localPort   = 1000
	remotePort  = 2000

	thisNode, otherNode = "10.20.0.1", "10.20.0.2"
	vxlanPort           = 4789
	endpointNumber      = 1
	// ofEndpoint and ofNobody are what to_tunnel writes into tc_index.
	ofEndpoint = uplink.OriginTunnel | uplink.OriginEndpoint | uplink.OriginMayHaveFlows | endpointNumber
	ofNobody   = uplink.OriginTunnel

	tcpAt         = 14 + 20 // in a frame of Ethernet and IPv4
	tcpAtInTunnel = tcpAt + 8 + 8 + tcpAt
	repeated      = "_repeated"
)

// uplinkRace has the programs of the uplink half, loaded apart from any node's.
type uplinkRace struct {
	rig.Race
	to   uplink.ToUplinkObjects
	from uplink.FromUplinkObjects
}

func newUplinkRace(context.Context) (*uplinkRace, error) {
	u := &uplinkRace{}
	if err := u.load(); err != nil {
		return nil, errors.Join(err, u.Close())
	}
	return u, nil
}

func (u *uplinkRace) load() error {
	if err := uplink.LoadToUplinkObjects(&u.to, nil); err != nil {
		return fmt.Errorf("loading to_uplink: %w", err)
	}
	u.Own(&u.to)
	m := u.to.ToUplinkMaps
	shared := map[string]*ebpf.Map{
		"node": m.Node, "peers": m.Peers, "peer_addresses": m.PeerAddresses, "endpoints": m.Endpoints,
		"flows": m.Flows, "handshakes": m.Handshakes, "recent_handshakes": m.RecentHandshakes,
		"connections": m.Connections, "local_filter": m.LocalFilter, "tunnels": m.Tunnels,
		"clock_readings": m.ClockReadings, "hot_flows": m.HotFlows,
	}
	if err := uplink.LoadFromUplinkObjects(&u.from, &ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return fmt.Errorf("loading from_uplink: %w", err)
	}
	u.Own(&u.from)
	bit := uplink.FilterBit(mapped(endpointPod).Word)
	var filter uplink.ToUplinkFilter
	filter.Bits[bit/64] |= 1 << (bit % 64)
	tunnels := uplink.ToUplinkTunnels{Kinds: uplink.TunnelVxlan}
	tunnels.Port[0], tunnels.Kind[0] = bpf.Port(vxlanPort), uplink.TunnelVxlan
	tunnels.Filter = uplink.PortBit(tunnels.Port[0])
	return errors.Join(
		m.Tunnels.Put(uint32(0), tunnels),
		m.LocalFilter.Put(uint32(0), filter),
		m.Node.Put(uint32(0), uplink.ToUplinkNode{Interface: [8]uint32{loopback, elsewhere}, PathsUp: 3}),
		m.Peers.Put(uint32(0), uplink.ToUplinkPeer{Ipv4Paths: 3}),
	)
}

// costing is a program of the uplink half and the stream that it runs on.
type costing struct {
	name    string
	program *ebpf.Program
	frame   []byte
	of      packettest.Segments
	flow    uplink.ToUplinkFlow
}

// measureCost runs each program on packets of its own, by BPF_PROG_TEST_RUN, next
// to an empty one. A redirect is counted as far as the program asks for it.
func measureCost(_ context.Context, m *rig.Measurement, u *uplinkRace) error {
	empty, err := u.LoadEmpty()
	if err != nil {
		return err
	}
	all := []costing{{name: rig.Empty, program: empty, frame: packet(otherPod, remotePod, localPort, remotePort), of: packettest.Segments{TCPAt: tcpAt}}}
	all = append(all, u.native()...)
	all = append(all, u.inVXLAN()...)
	u.Contenders = nil
	for _, one := range all {
		if err := u.contend(one); err != nil {
			return err
		}
	}
	if err := u.Run(); err != nil {
		return err
	}
	for _, one := range u.Contenders {
		u.Figures(m, one.Name, "cost."+one.Name+"_")
	}
	return nil
}

// native are packets as they are where pods' addresses are routed.
func (u *uplinkRace) native() []costing {
	of := packettest.Segments{TCPAt: tcpAt}
	out, in := packet(endpointPod, remotePod, localPort, remotePort), packet(remotePod, endpointPod, remotePort, localPort)
	return []costing{
		{"unselected", u.to.ToUplink, packet(otherPod, remotePod, localPort, remotePort), of, flowOn(0)},
		{"unselected_ingress", u.from.FromUplink, packet(remotePod, otherPod, remotePort, localPort), of, flowOn(0)},
		{"steer", u.to.ToUplink, out, of, flowOn(0)},
		{"steer" + repeated, u.to.ToUplink, out, of, flowOn(0)},
		{"steer_redirect", u.to.ToUplink, out, of, flowOn(1)},
		{"steer_redirect" + repeated, u.to.ToUplink, out, of, flowOn(1)},
		{"follow", u.from.FromUplink, in, of, flowOn(0)},
		{"follow" + repeated, u.from.FromUplink, in, of, flowOn(0)},
	}
}

// inVXLAN are the same packets in the tunnels of an overlay, over IPv4.
func (u *uplinkRace) inVXLAN() []costing {
	there := packettest.Tunnel{
		Kind: packettest.VXLAN, From: netip.MustParseAddr(thisNode), To: netip.MustParseAddr(otherNode), Port: vxlanPort,
	}
	back := there
	back.From, back.To = there.To, there.From
	var all []costing
	for _, one := range u.native() {
		one.name, one.of.TCPAt = "vxlan_"+one.name, tcpAtInTunnel
		one.flow.Endpoint, one.flow.From = endpointNumber, uint32(ofEndpoint)
		switch {
		case one.program == u.from.FromUplink:
			one.frame = back.Frame(one.frame)
		case strings.HasPrefix(one.name, "vxlan_unselected"):
			one.frame, one.of.TCIndex = there.Frame(one.frame), ofNobody
		default:
			one.frame, one.of.TCIndex = there.Frame(one.frame), ofEndpoint
		}
		all = append(all, one)
	}
	return all
}

// contend has each repeat of the packet be the next of its stream, but for one that is as
// if TCP repeated it.
func (u *uplinkRace) contend(one costing) error {
	one.of.Step = rig.SegmentBytes
	if strings.HasSuffix(one.name, repeated) {
		one.of.Step = 0
	}
	stream, err := packettest.NewStream(one.program, one.frame, one.of)
	if err != nil {
		return fmt.Errorf("loading the stream of %s: %w", one.name, err)
	}
	u.Own(stream)
	u.Contenders = append(u.Contenders, rig.Contender{
		Name: one.name, Program: stream.Program, Packet: one.frame, Prepare: func() error { return u.setFlow(one.flow) },
	})
	return nil
}

// flowOn is one that has a path: 0 is the packet's own NIC.
func flowOn(path uint8) uplink.ToUplinkFlow {
	return uplink.ToUplinkFlow{Path: path, Role: uplink.RoleInitiator, Allowed: 0xff}
}

// setFlow writes the endpoint's flow.
func (u *uplinkRace) setFlow(flow uplink.ToUplinkFlow) error {
	key := uplink.ToUplinkFlowKey{
		Local: mapped(endpointPod), Remote: mapped(remotePod),
		LocalPort: bpf.Port(localPort), RemotePort: bpf.Port(remotePort),
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return fmt.Errorf("reading the clock: %w", err)
	}
	// The same packet again and again would be a reason to avoid its path: this flow
	// begins to wait for an answer only in an hour.
	flow.Unanswered = uint32((now.Nano() + int64(time.Hour)) >> 20)
	if err := u.to.Flows.Put(key, flow); err != nil {
		return fmt.Errorf("writing a flow: %w", err)
	}
	return nil
}

func mapped(address string) uplink.ToUplinkAddress {
	return uplink.ToUplinkAddress{Word: bpf.Words(netip.MustParseAddr(address))}
}

// packet is a segment of an established connection.
func packet(from, to string, fromPort, toPort uint16) []byte {
	return rig.Segment(netip.AddrPortFrom(netip.MustParseAddr(from), fromPort), netip.AddrPortFrom(netip.MustParseAddr(to), toPort), rig.TCPOptions)
}
