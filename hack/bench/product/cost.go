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
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/hack/bench/rig"
)

const (
	loopback    = 1 // the interface index of packets of BPF_PROG_TEST_RUN
	elsewhere   = 2
	endpointPod = "10.244.1.2"
	otherPod    = "10.244.1.9"
	remotePod   = "10.244.2.2"
	initiator   = 1
	localPort   = 1000
	remotePort  = 2000
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
		"connections": m.Connections, "local_filter": m.LocalFilter,
	}
	if err := uplink.LoadFromUplinkObjects(&u.from, &ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return fmt.Errorf("loading from_uplink: %w", err)
	}
	u.Own(&u.from)
	bit := uplink.FilterBit(mapped(endpointPod).Word)
	var filter uplink.ToUplinkFilter
	filter.Bits[bit/64] |= 1 << (bit % 64)
	return errors.Join(
		m.LocalFilter.Put(uint32(0), filter),
		m.Node.Put(uint32(0), uplink.ToUplinkNode{Interface: [8]uint32{loopback, elsewhere}, PathsUp: 3}),
		m.Peers.Put(uint32(0), uplink.ToUplinkPeer{Ipv4Paths: 3}),
	)
}

// measureCost runs each program on packets of its own, by BPF_PROG_TEST_RUN, next
// to an empty one. A redirect is counted as far as the program asks for it.
func measureCost(_ context.Context, m *rig.Measurement, u *uplinkRace) error {
	empty, err := u.LoadEmpty()
	if err != nil {
		return err
	}
	unselected := packet(otherPod, remotePod, localPort, remotePort)
	selected := packet(endpointPod, remotePod, localPort, remotePort)
	received := packet(remotePod, endpointPod, remotePort, localPort)
	u.Contenders = []rig.Contender{
		{Name: rig.Empty, Program: empty, Packet: unselected},
		{Name: "unselected", Program: u.to.ToUplink, Packet: unselected},
		{Name: "unselected_ingress", Program: u.from.FromUplink, Packet: packet(remotePod, otherPod, remotePort, localPort)},
		{Name: "steer", Program: u.to.ToUplink, Packet: selected},
		{Name: "steer_repeated", Program: u.to.ToUplink, Packet: selected},
		{Name: "steer_redirect", Program: u.to.ToUplink, Packet: selected, Prepare: func() error { return u.setFlow(1) }},
		{Name: "follow", Program: u.from.FromUplink, Packet: received},
		{Name: "follow_repeated", Program: u.from.FromUplink, Packet: received},
	}
	for i := range u.Contenders {
		if err := u.stream(&u.Contenders[i]); err != nil {
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

// stream has each repeat of a contender's packet be the next of its stream, but for one
// that is as if TCP repeated it.
func (u *uplinkRace) stream(one *rig.Contender) error {
	if one.Prepare == nil {
		one.Prepare = func() error { return u.setFlow(0) }
	}
	step := uint32(rig.SegmentBytes)
	if strings.HasSuffix(one.Name, "_repeated") {
		step = 0
	}
	again, err := baseline.NewAgain(one.Packet, one.Program, step)
	if err != nil {
		return err
	}
	u.Own(again)
	one.Program = again.Program()
	return nil
}

// setFlow binds the endpoint's flow to a path: 0 is the packet's own NIC.
func (u *uplinkRace) setFlow(path uint8) error {
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
	flow := uplink.ToUplinkFlow{Path: path, Role: uplink.RoleInitiator, Allowed: 0xff, Unanswered: uint32((now.Nano() + int64(time.Hour)) >> 20)}
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
