// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

// Flow is a subflow that the node remembers.
type Flow struct {
	Local, Remote netip.AddrPort
	// Path is the name of the path that it is bound to; while that path is
	// down, another stands in for it.
	Path string
	// StandIn is the path by which this end's packets leave now, because Path does not
	// answer them; empty otherwise.
	StandIn string
	// Shared is true where that is the path which all flows of its connection share (see
	// Share).
	Shared bool
	// Incoming is the path by which something of the other end came in last; empty while
	// nothing has, and where it came by the NIC of no path.
	Incoming string
	// Initiator is true where this node chose the path.
	Initiator bool
	// Token of the connection at its responder; 0 while it is not known.
	Token uint32
	// Ended is true after both directions have ended.
	Ended bool
	// Peer is the number of the node at the other end.
	Peer uint32
	// Idle is about how long this node has sent nothing on it: the programs note the
	// time in steps of up to a minute.
	Idle time.Duration
}

// Carrier is the path by which this end's packets leave, as far as the flow itself says.
func (f *Flow) Carrier() string { return cmp.Or(f.StandIn, f.Path) }

// Flows lists the flows that the node remembers, in no order.
func (d *Datapath) Flows() ([]Flow, error) {
	if !d.loaded.Is() {
		return nil, nil
	}
	names, err := node.ReadNames(d.options.PinPath)
	if err != nil {
		return nil, err
	}
	return flowsIn(d.loaded.Value.maps(), names)
}

// PinnedFlows is Flows by the pins alone. It may be called at any time and from any
// goroutine; there are none where nothing is pinned.
func (d *Datapath) PinnedFlows() (flows []Flow, err error) {
	table, err := d.OpenFlows()
	if err != nil {
		return nil, err
	}
	defer table.Close()
	err = table.Each(func(flow *Flow) { flows = append(flows, *flow) })
	return flows, err
}

// flowsIn lists what the maps have.
func flowsIn(m *uplink.ToUplinkMaps, names node.Names) (flows []Flow, err error) {
	table := FlowTable{flows: m.Flows, answered: m.Answered, node: m.Node, peers: m.Peers, preferences: m.Preferences, names: names}
	err = table.Each(func(flow *Flow) { flows = append(flows, *flow) })
	return flows, err
}

// FlowTable reads the pinned flows one by one: there may be more than one wants to have
// in memory.
type FlowTable struct {
	flows, answered          *ebpf.Map // nil where nothing is pinned
	node, peers, preferences *ebpf.Map // likewise
	names                    node.Names
}

// OpenFlows opens the table by the pins alone. It may be called at any time and from any
// goroutine; the table is empty where nothing is pinned.
func (d *Datapath) OpenFlows() (*FlowTable, error) {
	pin := filepath.Join(d.loaded.Directory(), uplink.ToUplinkMapFlows)
	flows, err := ebpf.LoadPinnedMap(pin, &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, os.ErrNotExist) {
		return &FlowTable{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to open the pinned map %s: %w", pin, err)
	}
	table := &FlowTable{flows: flows}
	if table.answered, err = d.openAnswered(); err == nil {
		table.names, err = node.ReadNames(d.options.PinPath)
	}
	if err == nil {
		table.node, table.peers, table.preferences, err = d.openWays()
	}
	if err != nil {
		return nil, errors.Join(err, table.Close())
	}
	return table, nil
}

// Close lets go of it.
func (t *FlowTable) Close() error {
	var failed error
	for _, opened := range []*ebpf.Map{t.flows, t.answered, t.node, t.peers, t.preferences} {
		if opened != nil {
			failed = errors.Join(failed, opened.Close())
		}
	}
	return failed
}

// Each visits all flows, in no order.
func (t *FlowTable) Each(visit func(*Flow)) error {
	if t.flows == nil {
		return nil
	}
	reader, err := t.reader()
	if err != nil {
		return err
	}
	err = entries.Each(t.flows, func(key *uplink.ToUplinkFlowKey, flow *uplink.ToUplinkFlow) { visit(reader.flow(key, flow)) })
	return errors.Join(err, reader.err())
}

// Find returns the flow with these ends; nil where there is none.
func (t *FlowTable) Find(local, remote netip.AddrPort) (*Flow, error) {
	if t.flows == nil {
		return nil, nil
	}
	key := keyOf(local, remote)
	var flow uplink.ToUplinkFlow
	if err := t.flows.Lookup(key, &flow); errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("looking a flow up: %w", err)
	}
	reader, err := t.reader()
	if err != nil {
		return nil, err
	}
	return reader.flow(&key, &flow), reader.err()
}

// flowReader tells of flows as they are at one time.
type flowReader struct {
	*FlowTable
	clock   uint32
	silence *silence
	ways    *ways
}

func (t *FlowTable) reader() (flowReader, error) {
	silence, err := newSilence(t.answered)
	return flowReader{t, clock(), silence, newWays(t.node, t.peers, t.preferences)}, err
}

// err is what went wrong first.
func (r flowReader) err() error { return errors.Join(r.silence.err, r.ways.err) }

// standIn is the path by which a flow's packets leave, where that is not its own: it does not
// answer, is dead or down, the pod prefers another one, or its connection's flows share one.
func (r flowReader) standIn(flow *uplink.ToUplinkFlow) (path uint8, ok bool) {
	if flow.Last == flow.Path || flow.Last >= uplink.MaxPaths || flow.Path >= uplink.MaxPaths || flow.Ended == uplink.EndedBoth {
		return 0, false
	}
	return flow.Last, r.silence.avoided(flow)>>flow.Path&1 != 0 || !r.ways.leads(flow) || r.ways.prefers(flow) || shares(flow)
}

// shares tells whether the flow leaves by the path that it shares with others of its
// connection. One that rests is on a path of its own.
func shares(flow *uplink.ToUplinkFlow) bool {
	return flow.Subtype&(uplink.TogetherBits|uplink.Noted) == uplink.Noted|uplink.Together|flow.Last<<uplink.TogetherPath
}

func (r flowReader) flow(key *uplink.ToUplinkFlowKey, flow *uplink.ToUplinkFlow) *Flow {
	found := &Flow{
		Local:     bpf.AddrPort(key.Local.Word, key.LocalPort),
		Remote:    bpf.AddrPort(key.Remote.Word, key.RemotePort),
		Path:      r.names.Paths[flow.Path%uplink.MaxPaths],
		Initiator: flow.Role == uplink.RoleInitiator,
		Ended:     flow.Ended == uplink.EndedBoth,
		Peer:      uint32(flow.Peer),
		Idle:      time.Duration(max(r.clock, flow.Used)-flow.Used) * time.Second,
	}
	if path, ok := r.standIn(flow); ok {
		found.StandIn = r.names.Paths[path]
	}
	found.Shared = shares(flow)
	if flow.Incoming != 0 && flow.Incoming <= uplink.MaxPaths {
		found.Incoming = r.names.Paths[flow.Incoming-1]
	}
	if found.Initiator { // a responder's flow has something else there
		found.Token = flow.Token
	}
	return found
}

func (d *Datapath) eachFlow(visit func(*uplink.ToUplinkFlowKey, *uplink.ToUplinkFlow)) error {
	return entries.Each(d.loaded.Value.maps().Flows, visit)
}

// update removes the flows that refer to something that is gone, whose packets go
// on by the cluster network's route, and says whose the others are. A flow that
// ends or moves at the same time is moved again by its next packet.
func (d *Datapath) update(c changes) error {
	if c.empty() {
		return nil
	}
	if err := clearDepartures(d.loaded.Value.maps().Departures, c.paths); err != nil {
		return err
	}
	if err := d.traffic.clear(c.paths, c.accounts); err != nil {
		return err
	}
	var orphans []uplink.ToUplinkFlowKey
	adopted := map[uplink.ToUplinkFlowKey]uplink.ToUplinkFlow{}
	err := d.eachFlow(func(key *uplink.ToUplinkFlowKey, flow *uplink.ToUplinkFlow) {
		local := bpf.Address(key.Local.Word)
		if c.paths[uint32(flow.Path)] || c.peers[uint32(flow.Peer)] || c.addresses[local] || c.hasLost(flow, local) {
			orphans = append(orphans, *key)
		} else if id, owned := c.owners[local]; owned && id != flow.Endpoint {
			flow.Endpoint = id
			adopted[*key] = *flow
		}
	})
	if err != nil {
		return err
	}
	if err := entries.Delete(d.loaded.Value.maps().Flows, orphans...); err != nil {
		return err
	}
	for key, flow := range adopted {
		if err := d.loaded.Value.maps().Flows.Update(key, flow, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("writing the endpoint of a flow: %w", err)
		}
	}
	if len(orphans)+len(adopted) > 0 {
		if err := d.node.askFlows(); err != nil {
			return err
		}
	}
	d.compared = true
	return nil
}
