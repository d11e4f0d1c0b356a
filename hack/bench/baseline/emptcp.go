// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// SelectorKind is what a selector looks at (table I of the paper).
type SelectorKind uint8

// The selectors; the numbers are those of enum selector_number.
const (
	SelectSubflow SelectorKind = iota + 1
	SelectIPPair
	SelectConnection
	SelectPacketType
)

// ActionKind is what an action does (table II of the paper).
type ActionKind uint8

// The actions; the numbers are those of enum action_number.
const (
	ActRateLimit ActionKind = iota + 1
	ActSetBackup
	ActGetSubflow
	ActRecord
)

// mostBlocks is MAX_BLOCKS: what the metadata of a packet has room for.
const mostBlocks = 4

// Selector is one block of the selector chain.
type Selector struct {
	Kind SelectorKind
	// Or makes a match select the packet, whatever follows; otherwise all that
	// follow must match too.
	Or bool
	// Types are the MPTCP subtypes that SelectPacketType takes: 1 << subtype.
	Types uint32
}

// Action is one block of the action chain.
type Action struct {
	Kind ActionKind
	// Parameter is the window of ActRateLimit, in units of the window's scale, or
	// the backup bit of ActSetBackup.
	Parameter uint16
}

// Subflow is what the selectors select: IPv4 only.
type Subflow struct {
	Local, Remote netip.AddrPort
	// Token of its connection.
	Token uint32
}

// Chain is the one chain of a hook.
type Chain struct{ objects EMPTCPObjects }

// New loads the programs, with a chain that selects nothing.
func New() (*Chain, error) {
	chain := &Chain{}
	if err := LoadEMPTCPObjects(&chain.objects, nil); err != nil {
		return nil, fmt.Errorf("load the baseline of eMPTCP: %w", err)
	}
	if err := chain.fill(); err != nil {
		return nil, errors.Join(err, chain.Close())
	}
	return chain, nil
}

// Program is the first one of the chain, to be attached or run.
func (c *Chain) Program() *ebpf.Program { return c.objects.SelectorEntry }

// Close unloads the programs.
func (c *Chain) Close() error { return c.objects.Close() }

func (c *Chain) fill() error {
	o := &c.objects
	selectors := map[uint32]*ebpf.Program{
		uint32(SelectSubflow): o.SubflowSelector, uint32(SelectIPPair): o.IpPairSelector,
		uint32(SelectConnection): o.ConnectionSelector, uint32(SelectPacketType): o.PacketTypeSelector,
	}
	actions := map[uint32]*ebpf.Program{
		0: o.ActionEntry, uint32(ActRateLimit): o.RateLimitAction, uint32(ActSetBackup): o.SetBackupAction,
		uint32(ActGetSubflow): o.GetSubflowAction, uint32(ActRecord): o.RecordAction,
	}
	return errors.Join(putAll(o.Selectors, selectors), putAll(o.Actions, actions))
}

func putAll(array *ebpf.Map, programs map[uint32]*ebpf.Program) error {
	for number, program := range programs {
		if err := array.Put(number, program); err != nil {
			return fmt.Errorf("putting program %d into its array: %w", number, err)
		}
	}
	return nil
}

// actionChain is the number of the only action chain.
const actionChain = uint32(7)

// Set makes the chain: the selectors select this subflow, and what they select goes
// through the actions.
func (c *Chain) Set(subflow Subflow, selectors []Selector, actions []Action) error {
	if len(selectors) > mostBlocks || len(actions) > mostBlocks {
		return fmt.Errorf("a chain has room for %d selectors and %d actions", mostBlocks, mostBlocks)
	}
	var selecting, acting EMPTCPBlocks
	for i, selector := range selectors {
		condition := EMPTCPCondition{Token: subflow.Token, Types: selector.Types, ActionChain: actionChain}
		if err := c.objects.Conditions.Put(uint32(i), condition); err != nil {
			return fmt.Errorf("writing a selector's parameters: %w", err)
		}
		selecting.Block[i] = word(uint8(selector.Kind), selector.Or, uint16(i))
	}
	for i, action := range actions {
		acting.Block[i] = word(uint8(action.Kind), false, action.Parameter)
	}
	if err := c.know(subflow); err != nil {
		return err
	}
	if err := errors.Join(c.objects.ActionChains.Put(actionChain, acting), c.objects.SelectorChain.Put(uint32(0), selecting)); err != nil {
		return fmt.Errorf("writing the chain: %w", err)
	}
	return nil
}

func word(number uint8, or bool, parameter uint16) uint32 {
	combined := uint32(number) | uint32(parameter)<<16
	if or {
		combined |= 1 << 8
	}
	return combined
}

// know puts the subflow into the tables of all selectors.
func (c *Chain) know(subflow Subflow) error {
	tuple := EMPTCPTuple{
		Local: address(subflow.Local), Remote: address(subflow.Remote),
		LocalPort: port(subflow.Local), RemotePort: port(subflow.Remote),
	}
	pair := EMPTCPIpPair{Local: tuple.Local, Remote: tuple.Remote}
	err := errors.Join(
		c.objects.SubflowChains.Put(tuple, actionChain),
		c.objects.PairChains.Put(pair, actionChain),
		c.objects.Tokens.Put(tuple, subflow.Token),
	)
	if err != nil {
		return fmt.Errorf("writing what the selectors select: %w", err)
	}
	return nil
}

func address(of netip.AddrPort) uint32 {
	bytes := of.Addr().As4()
	return binary.NativeEndian.Uint32(bytes[:])
}

func port(of netip.AddrPort) uint16 {
	var bytes [2]byte
	binary.BigEndian.PutUint16(bytes[:], of.Port())
	return binary.NativeEndian.Uint16(bytes[:])
}

// Metrics are the packets and bytes that ActRecord counted of the subflow.
func (c *Chain) Metrics(subflow Subflow) (packets, bytes uint64, err error) {
	tuple := EMPTCPTuple{
		Local: address(subflow.Local), Remote: address(subflow.Remote),
		LocalPort: port(subflow.Local), RemotePort: port(subflow.Remote),
	}
	var metrics EMPTCPMetrics
	if err := c.objects.EMPTCPMaps.Metrics.Lookup(tuple, &metrics); err != nil {
		return 0, 0, fmt.Errorf("reading a subflow's metrics: %w", err)
	}
	return metrics.Packets, metrics.Bytes, nil
}

// Straight is a chain as one program without look-ups but that of the subflow's
// record.
type Straight struct{ objects StraightObjects }

// NewStraight compiles the first of the four selectors and actions (subflow, IP
// pair, connection, packet type; rate limit, backup, report, record) into a program.
func NewStraight(subflow Subflow, selectors, actions int, types uint32, window uint16) (*Straight, error) {
	spec, err := LoadStraight()
	if err != nil {
		return nil, fmt.Errorf("reading the straight program: %w", err)
	}
	for name, value := range map[string]any{
		"selector_count": uint32(selectors), "action_count": uint32(actions), "types": types, "window": window,
		"local": address(subflow.Local), "remote": address(subflow.Remote), "token": subflow.Token,
		"local_port": port(subflow.Local), "remote_port": port(subflow.Remote),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	straight := &Straight{}
	if err := spec.LoadAndAssign(&straight.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the straight program: %w", err)
	}
	tuple := StraightTuple{
		Local: address(subflow.Local), Remote: address(subflow.Remote),
		LocalPort: port(subflow.Local), RemotePort: port(subflow.Remote),
	}
	if err := straight.objects.Records.Put(tuple, StraightRecord{Token: subflow.Token}); err != nil {
		return nil, errors.Join(fmt.Errorf("writing the subflow's record: %w", err), straight.Close())
	}
	return straight, nil
}

// Program is the one to be attached or run.
func (s *Straight) Program() *ebpf.Program { return s.objects.Straight }

// Close unloads the program.
func (s *Straight) Close() error { return s.objects.Close() }

// Again runs a program on a packet that has its window and checksum back each time, and
// is the next of its stream.
type Again struct{ objects AgainObjects }

// NewAgain loads it for the packet of a test run: an IPv4 frame without IP options. With
// each repeat the stream goes on by step bytes.
func NewAgain(frame []byte, measured *ebpf.Program, step uint32) (*Again, error) {
	const sequenceAt, windowAt, checkAt = 14 + 20 + 4, 14 + 20 + 14, 14 + 20 + 16
	spec, err := LoadAgain()
	if err != nil {
		return nil, fmt.Errorf("reading the repeating program: %w", err)
	}
	for name, at := range map[string]int{"window": windowAt, "check": checkAt} {
		if err := spec.Variables[name].Set(binary.NativeEndian.Uint16(frame[at:])); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	for name, value := range map[string]uint32{"step": step, "sequence": binary.BigEndian.Uint32(frame[sequenceAt:])} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("setting %s: %w", name, err)
		}
	}
	again := &Again{}
	if err := spec.LoadAndAssign(&again.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the repeating program: %w", err)
	}
	if err := again.objects.Measured.Put(uint32(0), measured); err != nil {
		return nil, errors.Join(fmt.Errorf("choosing what is measured: %w", err), again.Close())
	}
	return again, nil
}

// Program is the one to run.
func (a *Again) Program() *ebpf.Program { return a.objects.Again }

// Close unloads the program.
func (a *Again) Close() error { return a.objects.Close() }

// Event takes one event of ActGetSubflow, if there is one.
func (c *Chain) Event() (Subflow, error) {
	reader, err := ringbuf.NewReader(c.objects.Events)
	if err != nil {
		return Subflow{}, fmt.Errorf("opening the events: %w", err)
	}
	defer reader.Close()
	reader.SetDeadline(time.Now())
	record, err := reader.Read()
	if err != nil {
		return Subflow{}, fmt.Errorf("reading an event: %w", err)
	}
	raw := record.RawSample
	end := func(at, portAt int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[at:])), binary.BigEndian.Uint16(raw[portAt:]))
	}
	return Subflow{Local: end(0, 8), Remote: end(4, 10), Token: binary.BigEndian.Uint32(raw[12:])}, nil
}
