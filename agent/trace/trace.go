// SPDX-License-Identifier: Apache-2.0

// Package trace replays a packet through the programs of a node and says what each
// did. It runs copies of the programs: the same instructions, which the kernel's own
// hash of those that are attached proves, with maps of their own that begin with what
// the real ones hold. So a replay sends nothing and changes nothing: no counter, no
// flow, no record, no event.
//
// Shared with the attached programs are maps that these only read: chains, the
// numbers of the paths' NICs, preferences, the health of paths and the addresses of
// peers. The cluster network's route is asked of the kernel, as the programs do.
//
// programs of users' own do not run, because their maps are theirs; limits that drop at
// the uplinks (meter) depend on the moment and are left out; what netfilter does in
// between, such as translating a Service's address, is not replayed.
package trace

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/agentapi"
)

// Options say where the agent keeps what it knows, and whose packets are replayed.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// StatePath is its directory of states.
	StatePath string
	// Pod is namespace/name, for the report alone.
	Pod string
	// Address of the pod: a packet from there is what it sends, others are what it
	// receives.
	Address netip.Addr
	// Path by which packets for the pod come in; empty for the NIC of the route to
	// their sender.
	Path string
}

// Report is what became of the packets.
type Report struct {
	Pod       string         `json:"pod,omitempty"`
	Address   netip.Addr     `json:"address"`
	Interface string         `json:"interface"`
	Packets   []PacketReport `json:"packets"`
}

// PacketReport is what became of one packet.
type PacketReport struct {
	// Number in the capture; 1 for one that was made.
	Number int `json:"number"`
	// Packet in words; empty for what is no TCP segment.
	Packet    string             `json:"packet,omitempty"`
	Direction v1alpha1.Direction `json:"direction,omitempty"`
	Steps     []Step             `json:"steps"`
	// Outcome in words.
	Outcome string `json:"outcome"`
	// Path is the name of the path by which it leaves, if a program chose one.
	Path string `json:"path,omitempty"`
}

// Verdict of a program.
type Verdict string

// Verdicts.
const (
	NotAttached Verdict = "NotAttached"
	Pass        Verdict = "Pass"
	Drop        Verdict = "Drop"
	Redirect    Verdict = "Redirect"
)

// Step is what one program did.
type Step struct {
	Program   string `json:"program"`
	Interface string `json:"interface"`
	// Hook is ingress or egress of the interface.
	Hook string `json:"hook"`
	// ID and Tag are those of the attached program.
	ID      uint32  `json:"id,omitempty"`
	Tag     string  `json:"tag,omitempty"`
	Verdict Verdict `json:"verdict"`
	// Rules that matched, in their order.
	Rules []RuleHit `json:"rules,omitempty"`
	// Path, NIC and NextHop are where the packet is sent.
	Path    string `json:"path,omitempty"`
	NIC     string `json:"nic,omitempty"`
	NextHop string `json:"nextHop,omitempty"`
	// Flow is what is remembered of the subflow after the packet; nil if nothing is.
	Flow *Flow `json:"flow,omitempty"`
	// Changes are the bytes that are others now.
	Changes []Change `json:"changes,omitempty"`
	// Notes are other things worth knowing.
	Notes []string `json:"notes,omitempty"`
}

// RuleHit is a rule that matched the packet.
type RuleHit struct {
	Policy string `json:"policy,omitempty"`
	Name   string `json:"name"`
	// Acted is true where its actions changed, dropped or answered the packet, or
	// noted something to do on others.
	Acted bool `json:"acted"`
}

// Flow is what the uplink half remembers of a subflow.
type Flow struct {
	// New is true where this packet began it.
	New bool `json:"new,omitempty"`
	// Initiator is true where this node chose the path.
	Initiator bool `json:"initiator"`
	// Path is the flow's own; the packet may take another while it cannot be used.
	Path string `json:"path"`
	// Avoided paths did not answer it.
	Avoided []string       `json:"avoided,omitempty"`
	Token   agentapi.Token `json:"token,omitempty"`
}

// Change is a run of bytes that a program changed.
type Change struct {
	// Offset from the beginning of the Ethernet frame.
	Offset int `json:"offset"`
	// Field that it belongs to, such as "TCP window".
	Field  string `json:"field"`
	Before string `json:"before"`
	After  string `json:"after"`
}

// Tracer replays packets of one pod. Each sees what those before it left behind, in
// the copies alone. It is for one goroutine, in the node's network namespace.
type Tracer struct {
	options Options
	names   *inspect.Directory
	device  int
	cell    *cell
	copies  map[string]*replica   // by program
	paths   [node.MaxPaths]string // by number
	// interfaces are the hosts' ends, by endpoints' numbers.
	interfaces map[uint32]int
}

// Open finds the pod's interface. Close lets go of what replays load.
func Open(options Options) (*Tracer, error) {
	names, err := inspect.OpenDirectory(filepath.Join(options.StatePath, inspect.DirectoryName))
	if err != nil {
		return nil, err
	}
	numbers, err := node.ReadNames(options.PinPath)
	if err != nil {
		return nil, err
	}
	t := &Tracer{options: options, names: names, paths: numbers.Paths, interfaces: numbers.Interfaces, copies: map[string]*replica{}}
	if t.device, err = t.findDevice(); err != nil {
		return nil, fmt.Errorf("finding the interface of %s: %w", options.Address, err)
	}
	return t, nil
}

// findDevice finds the pod's interface where the agent said it, or else by the route, which
// names a bridge where one has it.
func (t *Tracer) findDevice() (int, error) {
	var endpoint uplink.ToUplinkEndpoint
	words := uplink.ToUplinkAddress{Word: bpf.Words(t.options.Address)}
	err := t.readPin("endpoints", func(m *ebpf.Map) error { return m.Lookup(words, &endpoint) })
	if err == nil && endpoint.Interface != 0 {
		return int(endpoint.Interface), nil
	}
	if known := t.interfaces[endpoint.Id]; err == nil && known != 0 {
		return known, nil
	}
	if err != nil && !isGone(err) {
		return 0, err
	}
	return routeTo(t.options.Address, netip.Addr{}, 0)
}

// readPin reads a pinned map of the uplink half. It fails with os.ErrNotExist where
// there is none.
func (t *Tracer) readPin(name string, read func(*ebpf.Map) error) error {
	pins, err := filepath.Glob(filepath.Join(t.options.PinPath, "datapath", "v*", name))
	pins = slices.DeleteFunc(pins, func(pin string) bool { return strings.Contains(filepath.Base(filepath.Dir(pin)), "_") })
	if err != nil || len(pins) == 0 {
		return fmt.Errorf("the map %s of the uplinks: %w", name, os.ErrNotExist)
	}
	opened, err := ebpf.LoadPinnedMap(pins[len(pins)-1], &ebpf.LoadPinOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("opening the map %s: %w", name, err)
	}
	defer opened.Close()
	return read(opened)
}

// Close lets go of everything.
func (t *Tracer) Close() error {
	var failed error
	for _, replica := range t.copies {
		failed = errors.Join(failed, replica.close())
	}
	if t.cell != nil {
		t.cell.close()
	}
	return failed
}

// Replay replays frames, one after the other.
func (t *Tracer) Replay(frames []Frame) (*Report, error) {
	report := &Report{Pod: t.options.Pod, Address: t.options.Address, Interface: nameOf(t.device), Packets: []PacketReport{}}
	for _, frame := range frames {
		packet := PacketReport{Number: frame.Number, Steps: []Step{}}
		if frame.Problem != "" {
			packet.Outcome = "not replayed: " + frame.Problem
		} else if err := t.replay(frame.Data, &packet); err != nil {
			return nil, fmt.Errorf("packet %d: %w", frame.Number, err)
		}
		report.Packets = append(report.Packets, packet)
	}
	return report, nil
}

func (t *Tracer) replay(frame []byte, packet *PacketReport) error {
	seen, ok := parse(frame)
	if !ok {
		packet.Outcome = "not replayed: it is no TCP segment over IP, which passes every program untouched"
		return nil
	}
	packet.Packet = seen.String()
	switch t.options.Address {
	case seen.from.Addr():
		packet.Direction = v1alpha1.DirectionFromEndpoint
		return t.out(frame, seen, packet)
	case seen.to.Addr():
		packet.Direction = v1alpha1.DirectionToEndpoint
		return t.in(frame, seen, packet)
	}
	packet.Outcome = "not replayed: it is neither from nor for " + t.options.Address.String()
	return nil
}

// out replays what the pod sends.
func (t *Tracer) out(frame []byte, seen parsed, packet *PacketReport) error {
	for _, p := range []program{ownSource, fromEndpoint} {
		step, after, err := t.step(p, frame, t.device, t.device)
		if err != nil {
			return err
		}
		packet.Steps = append(packet.Steps, step)
		if step.Verdict == Drop {
			packet.Outcome = dropped(step)
			return nil
		}
		frame = after
	}
	nic, err := routeTo(seen.to.Addr(), seen.from.Addr(), t.device)
	if err != nil {
		packet.Outcome = fmt.Sprintf("dropped: the node has no route to %s: %v", seen.to.Addr(), err)
		return nil
	}
	if overlay, err := steeredOverlay(nic); err != nil || overlay {
		packet.Outcome = fmt.Sprintf("enters the overlay by %s, where the replay ends: the path is chosen when the packet is encapsulated", nameOf(nic))
		return err
	}
	step, _, err := t.step(toUplink, frame, nic, t.device)
	if err != nil {
		return err
	}
	packet.Steps = append(packet.Steps, step)
	packet.Path, packet.Outcome = step.Path, leaves(step)
	return nil
}

// in replays what the pod receives.
func (t *Tracer) in(frame []byte, seen parsed, packet *PacketReport) error {
	nic, err := t.nicOf(seen.from.Addr())
	if err != nil {
		return err
	}
	overlay, err := steeredOverlay(nic)
	if err != nil {
		return err
	}
	if !overlay { // of which it comes out as if by no path
		step, _, err := t.step(fromUplink, frame, nic, nic)
		if err != nil {
			return err
		}
		packet.Steps = append(packet.Steps, step)
	}
	last, after, err := t.step(toEndpoint, frame, t.device, nic)
	if err != nil {
		return err
	}
	packet.Steps = append(packet.Steps, last)
	packet.Outcome = "reaches the pod"
	if len(last.Changes) > 0 {
		packet.Outcome = fmt.Sprintf("reaches the pod, changed, with %d bytes", len(after))
	}
	if last.Verdict == Drop {
		packet.Outcome = dropped(last)
	}
	return nil
}

// steeredOverlay is whether an interface is an overlay's, whose packets are steered at the
// NICs.
func steeredOverlay(index int) (bool, error) {
	found, err := findAttached(index, toTunnelHook)
	if errors.Is(err, ErrNotAttached) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, found.close()
}

// nicOf is the NIC by which packets of a sender come in.
func (t *Tracer) nicOf(sender netip.Addr) (int, error) {
	if t.options.Path == "" {
		nic, err := routeTo(sender, netip.Addr{}, 0)
		if err != nil {
			return 0, fmt.Errorf("finding the NIC by which packets of %s come in: %w", sender, err)
		}
		return nic, nil
	}
	var node uplink.ToUplinkNode
	if err := t.readPin("node", func(m *ebpf.Map) error { return m.Lookup(uint32(0), &node) }); err != nil {
		return 0, fmt.Errorf("finding the NIC of path %s: %w", t.options.Path, err)
	}
	for slot, name := range t.paths {
		if name == t.options.Path && node.Interface[slot] != 0 {
			return int(node.Interface[slot]), nil
		}
	}
	return 0, fmt.Errorf("this node has no NIC of a path %s; it has %s", t.options.Path, known(t.paths[:]))
}

func dropped(step Step) string {
	outcome := "dropped by " + step.Program
	for _, rule := range step.Rules {
		if rule.Acted {
			outcome = fmt.Sprintf("dropped by %s, rule %s", step.Program, rule.Name)
		}
	}
	for _, note := range step.Notes {
		if note == answered {
			outcome += "; " + answered
		}
	}
	return outcome
}

// leaves says where the packet goes.
func leaves(step Step) string {
	switch {
	case step.Verdict == Drop:
		return dropped(step)
	case step.Verdict == Redirect && step.Path == "":
		return "leaves by a path that could not be found out"
	case step.Path != "":
		return fmt.Sprintf("leaves by path %s (%s)", step.Path, step.NIC)
	}
	return fmt.Sprintf("leaves by %s, as the cluster network's route says", step.Interface)
}

// routeTo is the interface by which the node's routes send packets to an address, for
// one that came in by an interface where it is given.
func routeTo(to, from netip.Addr, by int) (int, error) {
	options := &netlink.RouteGetOptions{}
	if by != 0 {
		options.IifIndex, options.SrcAddr = by, from.AsSlice()
	}
	routes, err := netlink.RouteGetWithOptions(to.AsSlice(), options)
	if err != nil {
		return 0, err
	}
	if len(routes) == 0 {
		return 0, errors.New("no route")
	}
	return routes[0].LinkIndex, nil
}

func nameOf(index int) string {
	found, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("#%d", index)
	}
	return found.Attrs().Name
}
