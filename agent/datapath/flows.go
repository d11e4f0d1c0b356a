// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf"
)

// Flow is a subflow that the node remembers.
type Flow struct {
	Local, Remote netip.AddrPort
	// Path is the name of the path that it is bound to; while that path is
	// down, another stands in for it.
	Path string
	// Initiator is true where this node chose the path.
	Initiator bool
	// Token of the connection at its responder; 0 while it is not known.
	Token uint32
	// Ended is true after both directions have ended.
	Ended bool
}

// The values of enum flow_role and enum flow_ended in bpf/include/maps.h.
const (
	roleInitiator = 1
	endedBoth     = 3
)

// Flows lists the flows that the node remembers, in no order.
func (d *Datapath) Flows() ([]Flow, error) {
	if d.objects == nil {
		return nil, nil
	}
	names, err := d.readPathNames()
	if err != nil {
		return nil, err
	}
	var flows []Flow
	err = d.eachFlow(func(key bpf.ToUplinkFlowKey, flow bpf.ToUplinkFlow) {
		flows = append(flows, Flow{
			Local:     netip.AddrPortFrom(fromAddress(key.Local), fromPort(key.LocalPort)),
			Remote:    netip.AddrPortFrom(fromAddress(key.Remote), fromPort(key.RemotePort)),
			Path:      names[flow.Path%slots],
			Initiator: flow.Role == roleInitiator,
			Token:     flow.Token,
			Ended:     flow.Ended == endedBoth,
		})
	})
	return flows, err
}

// fromPort reads a port in network byte order.
func fromPort(port uint16) uint16 {
	var bytes [2]byte
	binary.NativeEndian.PutUint16(bytes[:], port)
	return binary.BigEndian.Uint16(bytes[:])
}

// eachFlow reads the map in batches, because it may be large.
func (d *Datapath) eachFlow(visit func(bpf.ToUplinkFlowKey, bpf.ToUplinkFlow)) error {
	const batch = 1024
	keys, values := make([]bpf.ToUplinkFlowKey, batch), make([]bpf.ToUplinkFlow, batch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := d.objects.maps().Flows.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			visit(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the flows: %w", err)
		}
	}
}

// forget removes the flows that refer to something that is gone; their packets
// go on by the cluster network's route.
func (d *Datapath) forget(g gone) error {
	if g.empty() {
		return nil
	}
	var orphans []bpf.ToUplinkFlowKey
	err := d.eachFlow(func(key bpf.ToUplinkFlowKey, flow bpf.ToUplinkFlow) {
		if g.slots[flow.Path] || g.peers[flow.Peer] || g.addresses[fromAddress(key.Local)] {
			orphans = append(orphans, key)
		}
	})
	if err != nil {
		return err
	}
	for _, key := range orphans {
		if err := d.objects.maps().Flows.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forgetting a flow: %w", err)
		}
	}
	return nil
}
