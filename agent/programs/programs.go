// SPDX-License-Identifier: Apache-2.0

// Package programs loads programs of an admin's own: selectors and actors for chains,
// congestion controls, and schedules. Each is verified before it takes the place
// of another; one that is refused leaves the other as it is.
package programs

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"

	"braid.dev/braid/api/v1alpha1"
)

const (
	// MaxSlots is the number of programs of type Action on a node.
	MaxSlots = 64
	// MaxPerPolicy is the number of programs that a policy may have.
	MaxPerPolicy = 8
	// MaxCalls is the number of RunProgram actions and of programs in matches of one
	// chain, and so for a packet. The kernel itself ends at 33.
	MaxCalls = 8
)

// Options of a manager.
type Options struct {
	// PinPath is the directory of pins of the endpoint half; programs have one of
	// their own in it.
	PinPath string
	// CustomBlocks and BlockContext are the maps of these names of the chains.
	CustomBlocks, BlockContext *ebpf.Map
	// Cgroup is the root of the cgroup2 tree, for schedules.
	Cgroup string
	// Directory holds programs as files; empty where the agent takes none.
	Directory string
	// ConfigMaps may be nil where the agent takes no programs from them.
	ConfigMaps ConfigMaps
	Log        logr.Logger
}

// Key names a program of a policy in results.
func Key(policy, block string) string { return policy + "/" + block }

// Result says what became of programs, by their keys. A program that was refused may
// be in Errors and, in its former version, in use.
type Result struct {
	// Slots has the slot in custom_blocks of each program of type Action in use.
	Slots map[string]uint32
	// Algorithms has the names that programs of type Congestion are registered under.
	Algorithms map[string]string
	// Schedules has the programs of type Schedule in use; Govern says for which pods.
	Schedules map[string]bool
	// Errors has the reason for each program that is not in use as the plan says.
	Errors map[string]error
}

// Manager keeps the programs of a node in use. It is safe for concurrent use.
type Manager struct {
	options Options

	mu      sync.Mutex
	inUse   map[string]*inUse  // by identity; nil before the first Apply
	states  map[string]*state  // that programs share, by identity
	refused map[string]refused // by key
	last    map[string]seen    // by key
}

// refused remembers what need not be tried again.
type refused struct {
	content string
	err     error
}

// NewManager makes a manager. Nothing is loaded before Apply.
func NewManager(options Options) *Manager {
	return &Manager{options: options, refused: map[string]refused{}, last: map[string]seen{}}
}

// Apply brings exactly these programs into use. A program whose new version is refused
// or cannot be read goes on in its old one. Chains must not call the slots of
// programs that are no longer listed for long: they are empty from now on, and
// chains pass over them.
func (m *Manager) Apply(ctx context.Context, blocks []v1alpha1.PlanProgram) (Result, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	result := Result{
		Slots: map[string]uint32{}, Algorithms: map[string]string{}, Schedules: map[string]bool{}, Errors: map[string]error{},
	}
	if m.inUse == nil {
		if err := m.recover(); err != nil {
			return result, fmt.Errorf("taking over programs: %w", err)
		}
	}
	wanted := map[string]bool{}
	candidates := m.candidates(ctx, blocks)
	m.applyAll(ctx, candidates)
	for _, c := range candidates {
		wanted[identity(c.key)] = true
		if c.err != nil {
			result.Errors[c.key] = c.err
		}
		m.report(c.key, &result)
	}
	return result, errors.Join(m.removeOthers(wanted), m.forgetStates(blocks))
}

// applyAll brings programs into use. Those that read maps of other policies come after the
// others, and again while there are more of these maps.
func (m *Manager) applyAll(ctx context.Context, candidates []*candidate) {
	agreed := agree(candidates)
	var readers []*candidate
	for _, c := range candidates {
		switch {
		case c.err != nil:
		case c.readsOthers():
			readers = append(readers, c)
		default:
			c.err = m.applyOne(ctx, c, agreed)
		}
	}
	for before := -1; before < len(m.states) && len(readers) > 0; {
		before = len(m.states)
		for _, c := range readers {
			c.err = m.applyOne(ctx, c, agreed)
		}
	}
}

func (m *Manager) report(key string, result *Result) {
	block := m.inUse[identity(key)]
	switch {
	case block == nil:
	case block.kind == slotPin:
		result.Slots[key] = block.slot
	case block.kind == congestionPin:
		result.Algorithms[key] = block.algorithm
	case block.kind == schedulePin:
		result.Schedules[key] = true
	}
}

func (m *Manager) applyOne(ctx context.Context, c *candidate, agreed map[string]*agreement) error {
	if c.object == "" {
		if err := m.look(ctx, c); err != nil {
			return err
		}
	}
	shared, err := m.bindings(c, agreed)
	if err != nil {
		return err
	}
	current, content := m.inUse[identity(c.key)], contentWith(c.object, shared)
	if current != nil && current.content == content {
		return nil
	}
	if before := m.refused[c.key]; before.content == content {
		return before.err
	}
	delete(m.refused, c.key)
	err = m.use(ctx, c, shared, current)
	if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
		m.refused[c.key] = refused{content, err}
	}
	return err
}

// use verifies the program and puts it into the place of the current one. The maps that it
// is the first to share become the policy's with it.
func (m *Manager) use(ctx context.Context, c *candidate, shared []*binding, current *inUse) error {
	if c.source == nil {
		if err := m.readAgain(ctx, c); err != nil {
			return err
		}
	}
	if err := m.make(c.source, shared); err != nil {
		return errors.Join(err, m.unmake(shared))
	}
	loaded, err := Load(ctx, c.source, c.Function, c.Type, m.options.BlockContext, sharedBy(shared)...)
	if err != nil {
		return errors.Join(err, m.unmake(shared))
	}
	defer loaded.Close()
	next := &inUse{identity: identity(c.key), content: contentWith(c.object, shared)}
	if err := m.put(next, loaded, current); err != nil {
		return errors.Join(err, next.close(), m.unmake(shared))
	}
	m.inUse[next.identity] = next
	m.options.Log.Info("program in use", "program", c.key, "type", loaded.Type, "instructions", loaded.Instructions, "cost", loaded.Cost)
	failed := m.keep(shared)
	if current != nil {
		failed = errors.Join(failed, m.retire(current, next))
	}
	return failed
}

func (m *Manager) put(next *inUse, loaded *Program, current *inUse) error {
	switch loaded.Type {
	case v1alpha1.ProgramSchedule:
		return m.putSchedule(next, loaded, current)
	case v1alpha1.ProgramCongestion:
		return m.putCongestion(next, loaded, current)
	}
	return m.putAction(next, loaded, current)
}

// putAction writes the slot last: with that one store chains call the new program.
func (m *Manager) putAction(next *inUse, loaded *Program, current *inUse) (err error) {
	next.kind = slotPin
	if next.slot, err = m.chooseSlot(current); err != nil {
		return err
	}
	if next.program, err = loaded.program.Clone(); err != nil {
		return fmt.Errorf("keeping the program: %w", err)
	}
	pin := m.pin(next.pinName())
	if err := next.program.Pin(pin); err != nil {
		return fmt.Errorf("pinning the program: %w", err)
	}
	if err := m.options.CustomBlocks.Put(next.slot, next.program); err != nil {
		return errors.Join(fmt.Errorf("calling the program from slot %d: %w", next.slot, err), unpin(pin))
	}
	return nil
}

// chooseSlot gives a new program the lowest free slot. Slots that are given up in
// this round are still taken: chains may still call them.
func (m *Manager) chooseSlot(current *inUse) (uint32, error) {
	if current != nil && current.kind == slotPin {
		return current.slot, nil
	}
	taken := map[uint32]bool{}
	for _, block := range m.inUse {
		if block.kind == slotPin {
			taken[block.slot] = true
		}
	}
	for slot := range uint32(MaxSlots) {
		if !taken[slot] {
			return slot, nil
		}
	}
	return 0, refuse(fmt.Sprintf("all %d slots of this node are taken", MaxSlots))
}

// retire removes what is left of a program that another has replaced.
func (m *Manager) retire(old, next *inUse) error {
	if old.kind == slotPin && next.kind == slotPin {
		return errors.Join(unpin(m.pin(old.pinName())), old.close())
	}
	if old.kind == congestionPin && next.kind == congestionPin && old.algorithm == next.algorithm {
		return old.close() // its link has become the new one's
	}
	return m.remove(old)
}

// removeOthers ends the use of all programs but the wanted ones.
func (m *Manager) removeOthers(wanted map[string]bool) error {
	var failed error
	for id, block := range m.inUse {
		if wanted[id] {
			continue
		}
		if err := m.remove(block); err != nil {
			failed = errors.Join(failed, fmt.Errorf("removing a program: %w", err))
			continue
		}
		delete(m.inUse, id)
	}
	return failed
}

// remove ends the use of a program.
func (m *Manager) remove(block *inUse) error {
	if block.kind == slotPin {
		err := m.options.CustomBlocks.Delete(block.slot)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("emptying slot %d: %w", block.slot, err)
		}
	}
	failed := unpin(m.pin(block.pinName()))
	if block.kind == schedulePin {
		failed = errors.Join(failed, unpin(m.pin(block.namespacesPinName())))
	}
	return errors.Join(failed, block.close())
}

// Close lets go of the programs without ending their use: they are pinned.
func (m *Manager) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var failed error
	for _, block := range m.inUse {
		failed = errors.Join(failed, block.close())
	}
	for _, s := range m.states {
		failed = errors.Join(failed, s.close())
	}
	m.inUse, m.states = nil, nil
	return failed
}
