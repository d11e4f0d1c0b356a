// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
)

const (
	// repeats make the time of one packet measurable.
	repeats = 200_000
	// costTrials are many, because each takes milliseconds only.
	costTrials = 15

	loopback     = 1 // the interface index of packets of BPF_PROG_TEST_RUN
	elsewhere    = 2
	endpointPod  = "10.244.1.2"
	otherPod     = "10.244.1.9"
	remotePod    = "10.244.2.2"
	initiator    = 1
	localPort    = 1000
	remotePort   = 2000
	packetLength = 14 + 20 + 32 + 1000
)

// programs are those whose cost is measured, loaded apart from any node's.
type programs struct {
	empty *ebpf.Program
	to    uplink.ToUplinkObjects
	from  uplink.FromUplinkObjects
}

func (p *programs) close() error {
	return errors.Join(p.empty.Close(), p.to.Close(), p.from.Close())
}

// measureCost runs each program on packets of its own, by BPF_PROG_TEST_RUN, next
// to an empty one. A redirect is counted as far as the program asks for it.
func measureCost(_ context.Context, b *bench) (err error) {
	p := &programs{}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := p.load(); err != nil {
		return err
	}
	runs := []struct {
		name    string
		program *ebpf.Program
		packet  []byte
		path    uint8
	}{
		{"empty", p.empty, packet(otherPod, remotePod, localPort, remotePort), 0},
		{"unselected", p.to.ToUplink, packet(otherPod, remotePod, localPort, remotePort), 0},
		{"unselected_ingress", p.from.FromUplink, packet(remotePod, otherPod, remotePort, localPort), 0},
		{"steer", p.to.ToUplink, packet(endpointPod, remotePod, localPort, remotePort), 0},
		{"steer_redirect", p.to.ToUplink, packet(endpointPod, remotePod, localPort, remotePort), 1},
		{"follow", p.from.FromUplink, packet(remotePod, endpointPod, remotePort, localPort), 0},
	}
	trials, above := map[string][]float64{}, map[string][]float64{}
	for range costTrials {
		for _, run := range runs {
			if err := p.setFlow(run.path); err != nil {
				return err
			}
			_, each, err := run.program.Benchmark(run.packet, repeats, nil)
			if err != nil {
				return fmt.Errorf("running %s: %w", run.name, err)
			}
			trials[run.name] = append(trials[run.name], float64(each.Nanoseconds()))
			last := len(trials["empty"]) - 1
			above[run.name] = append(above[run.name], float64(each.Nanoseconds())-trials["empty"][last])
		}
	}
	for _, run := range runs {
		b.add("cost."+run.name+"_ns", "ns/packet", trials[run.name])
		if run.name != "empty" {
			b.add("cost."+run.name+"_above_empty_ns", "ns/packet", above[run.name])
		}
	}
	return nil
}

func (p *programs) load() error {
	var err error
	if p.empty, err = packettest.NewEmpty(); err != nil {
		return fmt.Errorf("loading the empty program: %w", err)
	}
	if err := uplink.LoadToUplinkObjects(&p.to, nil); err != nil {
		return fmt.Errorf("loading to_uplink: %w", err)
	}
	m := p.to.ToUplinkMaps
	shared := map[string]*ebpf.Map{
		"node": m.Node, "peers": m.Peers, "peer_addresses": m.PeerAddresses, "endpoints": m.Endpoints,
		"flows": m.Flows, "connections": m.Connections, "local_filter": m.LocalFilter,
	}
	if err := uplink.LoadFromUplinkObjects(&p.from, &ebpf.CollectionOptions{MapReplacements: shared}); err != nil {
		return fmt.Errorf("loading from_uplink: %w", err)
	}
	local := mapped(endpointPod)
	folded := local.Word[0] ^ local.Word[1] ^ local.Word[2] ^ local.Word[3]
	bit := (folded ^ folded>>16) & 0xffff
	var filter uplink.ToUplinkFilter
	filter.Bits[bit/64] |= 1 << (bit % 64)
	return errors.Join(
		m.LocalFilter.Put(uint32(0), filter),
		m.Node.Put(uint32(0), uplink.ToUplinkNode{Interface: [8]uint32{loopback, elsewhere}, PathsUp: 3}),
		m.Peers.Put(uint32(0), uplink.ToUplinkPeer{Ipv4Paths: 3}),
	)
}

// setFlow binds the endpoint's flow to a path: 0 is the packet's own NIC.
func (p *programs) setFlow(path uint8) error {
	key := uplink.ToUplinkFlowKey{
		Local: mapped(endpointPod), Remote: mapped(remotePod),
		LocalPort: bpf.Port(localPort), RemotePort: bpf.Port(remotePort),
	}
	if err := p.to.Flows.Put(key, uplink.ToUplinkFlow{Path: path, Role: initiator, Allowed: 0xff}); err != nil {
		return fmt.Errorf("writing a flow: %w", err)
	}
	return nil
}

func mapped(address string) uplink.ToUplinkAddress {
	return uplink.ToUplinkAddress{Word: bpf.Words(netip.MustParseAddr(address))}
}

// packet is a segment of an established connection, with 1000 bytes of payload.
func packet(from, to string, fromPort, toPort uint16) []byte {
	frame := make([]byte, packetLength)
	frame[12], frame[13] = 0x08, 0x00 // IPv4
	ip := frame[14:]
	ip[0], ip[8], ip[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(ip[2:], packetLength-14)
	source, destination := netip.MustParseAddr(from).As4(), netip.MustParseAddr(to).As4()
	copy(ip[12:], source[:])
	copy(ip[16:], destination[:])
	tcp := ip[20:]
	binary.BigEndian.PutUint16(tcp, fromPort)
	binary.BigEndian.PutUint16(tcp[2:], toPort)
	tcp[12], tcp[13] = 8<<4, 0x10 // 32 bytes of header; ACK
	return frame
}
