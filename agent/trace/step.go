// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/guard"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/agentapi"
)

// program is one that packets pass.
type program struct {
	hook attach.Hook
	spec func() (*ebpf.CollectionSpec, error)
	// sibling shares its maps.
	sibling string
	// atEndpoint runs it where what it sends goes nowhere.
	atEndpoint bool
	treat      func(t *Tracer) map[string]treatment
}

// The hooks of the endpoint half.
var (
	fromEndpointHook = attach.Hook{Name: "from_endpoint", Type: ebpf.AttachTCXIngress}
	toEndpointHook   = attach.Hook{Name: "to_endpoint", Type: ebpf.AttachTCXEgress}
)

// toTunnelHook is of overlays' devices that are steered.
var toTunnelHook = attach.Hook{Name: "to_tunnel", Type: ebpf.AttachTCXEgress}

var (
	ownSource = program{
		hook: attach.Hook{Name: "own_source", Type: ebpf.AttachTCXIngress}, spec: guard.LoadOwnSource,
		treat: func(*Tracer) map[string]treatment { return nil },
	}
	fromEndpoint = program{
		hook: fromEndpointHook, spec: endpoint.LoadFromEndpoint,
		sibling: "to_endpoint", atEndpoint: true, treat: (*Tracer).endpointMaps,
	}
	toEndpoint = program{
		hook: toEndpointHook, spec: endpoint.LoadToEndpoint,
		sibling: "from_endpoint", atEndpoint: true, treat: (*Tracer).endpointMaps,
	}
	toUplink = program{
		hook: attach.Hook{Name: "to_uplink", Type: ebpf.AttachTCXEgress}, spec: uplink.LoadToUplink,
		sibling: "from_uplink", treat: (*Tracer).uplinkMaps,
	}
	fromUplink = program{
		hook: attach.Hook{Name: "from_uplink", Type: ebpf.AttachTCXIngress}, spec: uplink.LoadFromUplink,
		sibling: "to_uplink", treat: (*Tracer).uplinkMaps,
	}
)

// The sizes of what need not be large in a copy.
const (
	eventBytes = 1 << 16
	oneBypass  = 1 // of the slots of a cache, which begins empty
)

// endpointMaps leave out what belongs to other endpoints, and programs of users' own.
func (t *Tracer) endpointMaps() map[string]treatment {
	number := t.number()
	return map[string]treatment{
		"chains": {shared: true}, "path_interfaces": {shared: true},
		"attachments":    {key: native(uint32(t.device) % endpoint.Attachments)},
		"chain_counters": {fresh: true}, "custom_blocks": {fresh: true}, "block_context": {fresh: true},
		"run_context": {fresh: true}, "edit_scratch": {fresh: true},
		"events":            {fresh: true, entries: eventBytes},
		"bypass_cache":      {fresh: true, entries: oneBypass},
		"steady_subflows":   {fresh: true},
		"subflows":          {only: func(key []byte) bool { return bytes.HasSuffix(key, number) }},
		"mptcp_connections": {only: func(key []byte) bool { return bytes.HasPrefix(key, number) }},
	}
}

// uplinkMaps leave out the flows of other addresses.
func (t *Tracer) uplinkMaps() map[string]treatment {
	words := bpf.Words(t.options.Address)
	local := native(words)
	return map[string]treatment{
		"preferences": {shared: true}, "health": {shared: true}, "peer_addresses": {shared: true},
		"flows":       {only: func(key []byte) bool { return bytes.HasPrefix(key, local) }},
		"handshakes":  {only: func(key []byte) bool { return bytes.HasPrefix(key, local) }},
		"busy_flows":  {only: func(key []byte) bool { return bytes.HasPrefix(key, local) }},
		"traffic":     {fresh: true},
		"kept_origin": {fresh: true},
		"hot_flows":   {fresh: true},
		// What is asked about repeats nothing.
		"acknowledged": {fresh: true}, "withdrawn": {fresh: true},
	}
}

func native(value any) []byte {
	data, _ := binary.Append(nil, binary.NativeEndian, value) // a fixed size never fails
	return data
}

// copyOf is the private copy of a program, made when it is first needed.
func (t *Tracer) copyOf(p program, on int) (*replica, error) {
	from, err := findAttached(on, p.hook)
	if err != nil {
		return nil, err
	}
	if made := t.copies[p.hook.Name]; made != nil {
		if made.id != from.id {
			err = fmt.Errorf("%s was replaced meanwhile: try again", p.hook.Name)
		}
		return made, errors.Join(err, from.close())
	}
	spec, err := p.spec()
	if err == nil && p.atEndpoint && t.cell == nil {
		t.cell, err = newCell(t.device)
	}
	if err != nil {
		return nil, errors.Join(err, from.close())
	}
	made, err := replicate(from, p.hook.Name, spec, p.treat(t), t.copies[p.sibling])
	if err != nil {
		return nil, errors.Join(err, from.close())
	}
	t.copies[p.hook.Name] = made
	return made, nil
}

// step runs a copy of a program on a frame that is on an interface and came in by
// another, and returns the frame as it is after it.
func (t *Tracer) step(p program, frame []byte, on, by int) (Step, []byte, error) {
	step := Step{Program: p.hook.Name, Interface: nameOf(on), Hook: "egress"}
	if p.hook.Type == ebpf.AttachTCXIngress {
		step.Hook = "ingress"
	}
	made, err := t.copyOf(p, on)
	if errors.Is(err, ErrNotAttached) {
		step.Verdict = NotAttached
		return step, frame, nil
	}
	if err != nil {
		return step, nil, err
	}
	step.ID, step.Tag = uint32(made.id), made.tag
	var verdict int
	var after []byte
	replay := func() (err error) {
		verdict, after, err = run(made.Program, frame, on, by)
		return err
	}
	before, err := t.look(made, frame)
	if err != nil {
		return step, nil, err
	}
	if p.atEndpoint {
		err = t.cell.do(replay)
	} else {
		err = replay()
	}
	if err != nil {
		return step, nil, fmt.Errorf("%s: %w", p.hook.Name, err)
	}
	step.Verdict = verdictOf(verdict)
	step.Changes = changes(frame, after)
	return step, after, t.tell(&step, made, before, frame, on, by)
}

func verdictOf(verdict int) Verdict {
	switch verdict {
	case verdictDrop:
		return Drop
	case verdictRedirect:
		return Redirect
	}
	return Pass
}

// answered is what is noted of a rule that resets.
const answered = "answered with a reset, which a replay does not send"

// tell adds what the copy's maps say.
func (t *Tracer) tell(step *Step, made *replica, before view, frame []byte, on, by int) error {
	after, err := t.look(made, frame)
	if err != nil {
		return err
	}
	if after.counters != nil {
		step.Rules = t.hits(before.counters, after.counters)
		t.tellEndpoint(step, made)
	}
	if after.flow != nil {
		step.Flow = t.flowOf(after.flow, before.flow == nil)
	}
	if step.Program == toUplink.hook.Name && after.flow != nil {
		return t.tellPath(step, made, after.flow, frame, on, by)
	}
	return nil
}

// tellEndpoint notes what a drop was, and that there is no chain.
func (t *Tracer) tellEndpoint(step *Step, made *replica) {
	if t.attachmentIn(made) == nil {
		step.Notes = append(step.Notes, "the pod has no chain: nothing is looked at")
	}
	if step.Verdict == Drop && len(step.Changes) > 0 {
		step.Notes, step.Changes = append(step.Notes, answered), nil
	}
}

// view is what the maps of a copy say of a packet's subflow and rules.
type view struct {
	counters *endpoint.FromEndpointCounters
	flow     *uplink.ToUplinkFlow
}

func (t *Tracer) look(made *replica, frame []byte) (v view, err error) {
	if counters := made.collection.Maps["chain_counters"]; counters != nil {
		v.counters = &endpoint.FromEndpointCounters{}
		if at := t.attachmentIn(made); at != nil {
			if err := counters.Lookup(uint32(endpoint.Word(at.Chain).Row()), v.counters); err != nil {
				return v, fmt.Errorf("reading the counters: %w", err)
			}
		}
	}
	v.flow, err = flowIn(made.collection.Maps, t.flowKey(frame))
	return v, err
}

// flowIn finds a flow that lives, or else one whose handshake is under way; nil: neither.
func flowIn(maps map[string]*ebpf.Map, key uplink.ToUplinkFlowKey) (*uplink.ToUplinkFlow, error) {
	if maps["flows"] == nil {
		return nil, nil
	}
	var handshake uplink.ToUplinkHandshake
	err := maps["flows"].Lookup(key, &handshake.Flow)
	if isGone(err) {
		err = maps["handshakes"].Lookup(key, &handshake)
	}
	switch {
	case isGone(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading the flow: %w", err)
	}
	return &handshake.Flow, nil
}

// flowKey names the packet's subflow as the uplink half does.
func (t *Tracer) flowKey(frame []byte) (key uplink.ToUplinkFlowKey) {
	seen, _ := parse(frame)
	local, remote := seen.from, seen.to
	if seen.to.Addr() == t.options.Address {
		local, remote = remote, local
	}
	key.Local.Word, key.Remote.Word = bpf.Words(local.Addr()), bpf.Words(remote.Addr())
	key.LocalPort, key.RemotePort = bpf.Port(local.Port()), bpf.Port(remote.Port())
	return key
}

// attachmentIn is what a copy's maps say of the pod's interface; nil: it has no chain.
func (t *Tracer) attachmentIn(made *replica) *endpoint.FromEndpointAttachment {
	return attachmentOf(made.collection.Maps["attachments"], made.collection.Maps["attachments_overflow"], t.device)
}

func attachmentOf(table, overflow *ebpf.Map, device int) *endpoint.FromEndpointAttachment {
	var at endpoint.FromEndpointAttachment
	if table.Lookup(uint32(device)%endpoint.Attachments, &at) == nil && at.Interface == uint32(device) && at.Chain != 0 {
		return &at
	}
	if overflow.Lookup(uint32(device), &at) == nil && at.Chain != 0 {
		return &at
	}
	return nil
}

// number is that of the endpoint, as it stands in keys.
func (t *Tracer) number() []byte {
	for _, hook := range []attach.Hook{fromEndpointHook, toEndpointHook} {
		from, err := findAttached(t.device, hook)
		if err != nil {
			continue
		}
		at := attachmentOf(from.maps["attachments"], from.maps[kernelName("attachments_overflow")], t.device)
		if err := from.close(); err == nil && at != nil {
			return native(at.Endpoint)
		}
	}
	return native(uint32(0))
}

// hits are the rules whose counters moved.
func (t *Tracer) hits(before, after *endpoint.FromEndpointCounters) (hits []RuleHit) {
	number := binary.NativeEndian.Uint32(t.number())
	for i := range after.Rule {
		if after.Rule[i].Hits == before.Rule[i].Hits {
			continue
		}
		hit := RuleHit{Acted: after.Rule[i].Acted != before.Rule[i].Acted}
		hit.Policy, hit.Name = t.names.Rule(number, uint8(i))
		hits = append(hits, hit)
	}
	return hits
}

func (t *Tracer) flowOf(flow *uplink.ToUplinkFlow, isNew bool) *Flow {
	told := &Flow{New: isNew, Initiator: flow.Role == uplink.RoleInitiator, Path: t.pathName(int(flow.Path))}
	for slot := range uplink.MaxPaths {
		if flow.Avoided>>slot&1 != 0 {
			told.Avoided = append(told.Avoided, t.pathName(slot))
		}
	}
	if told.Initiator {
		told.Token = agentapi.Token(flow.Token)
	}
	return told
}

func (t *Tracer) pathName(slot int) string {
	if slot < len(t.paths) && t.paths[slot] != "" {
		return t.paths[slot]
	}
	return fmt.Sprintf("#%d", slot)
}

// tellPath finds out which path the program chose: where a packet is redirected to
// is not told, so the packet is replayed with the NIC of one path after the other
// exchanged, until the verdict is another.
func (t *Tracer) tellPath(step *Step, made *replica, flow *uplink.ToUplinkFlow, frame []byte, on, by int) error {
	nodes := made.collection.Maps["node"]
	var node uplink.ToUplinkNode
	if err := nodes.Lookup(uint32(0), &node); err != nil {
		return fmt.Errorf("reading the node's paths: %w", err)
	}
	defer func() { _ = nodes.Put(uint32(0), node) }() // a copy's
	for slot, nic := range node.Interface {
		if nic == 0 {
			continue
		}
		other := node
		other.Interface[slot] = uint32(on)
		if int(nic) == on {
			other.Interface[slot] = uint32(by)
		}
		if err := nodes.Put(uint32(0), other); err != nil {
			return fmt.Errorf("exchanging the NIC of a path: %w", err)
		}
		verdict, _, err := run(made.Program, frame, on, by)
		if err != nil {
			return err
		}
		if verdictOf(verdict) != step.Verdict {
			step.Path, step.NIC = t.pathName(slot), nameOf(int(nic))
			return t.tellNextHop(step, made, flow, slot, frame)
		}
	}
	return nil
}

// tellNextHop adds the peer's address on the path.
func (t *Tracer) tellNextHop(step *Step, made *replica, flow *uplink.ToUplinkFlow, slot int, frame []byte) error {
	if step.Verdict != Redirect {
		return nil
	}
	var peer uplink.ToUplinkPeer
	if err := made.collection.Maps["peers"].Lookup(uint32(flow.Peer), &peer); err != nil {
		return fmt.Errorf("reading the peer: %w", err)
	}
	hop := bpf.Address(peer.Ipv6[slot].Word)
	if seen, _ := parse(frame); seen.to.Addr().Is4() {
		hop, _ = netip.AddrFromSlice(native(peer.Ipv4[slot]))
	}
	step.NextHop = hop.String()
	return nil
}

func known(names []string) string {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" })
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
