// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"

	"braid.dev/braid/api/v1alpha1"
)

// statePin begins the name of the pin of a map that the programs of a policy share:
// state, identity, layout. Programs that are attached keep it too, but the next agent
// would not know which one it is.
const statePin = "state"

// Shared is a map that a program does not have for itself.
type Shared struct {
	Name string
	Map  *ebpf.Map
	// ReadOnly: the program is refused where it could write.
	ReadOnly bool
}

// state is a map that the programs of a policy share.
type state struct {
	identity string // of its policy and name
	layout   string // the hash
	shared   *ebpf.Map
	id       ebpf.MapID
}

func (s *state) pinName() string { return strings.Join([]string{statePin, s.identity, s.layout}, "-") }

func (s *state) close() error {
	if s.shared == nil {
		return nil
	}
	return s.shared.Close()
}

// newState makes the map; no pin holds it yet.
func newState(identity, layout string, spec *ebpf.MapSpec) (*state, error) {
	made, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, fmt.Errorf("making a map that programs share: %w", err)
	}
	return stateOf(identity, layout, made)
}

func stateOf(identity, layout string, shared *ebpf.Map) (*state, error) {
	info, err := shared.Info()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("looking at a map that programs share: %w", err), shared.Close())
	}
	id, _ := info.ID()
	return &state{identity: identity, layout: layout, shared: shared, id: id}, nil
}

// recoverStates opens those that an earlier agent made.
func (m *Manager) recoverStates(entries []os.DirEntry) (failed error) {
	m.states = map[string]*state{}
	for _, entry := range entries {
		parts := strings.Split(entry.Name(), "-")
		if parts[0] != statePin {
			continue
		}
		found, err := openState(m.pin(entry.Name()), parts)
		if err == nil && m.states[found.identity] != nil {
			err = errors.Join(errors.New("it was being replaced"), found.close())
		}
		if err != nil {
			m.options.Log.Info("a map that programs shared cannot be used any more", "pin", entry.Name(), "reason", err.Error())
			failed = errors.Join(failed, unpin(m.pin(entry.Name())))
			continue
		}
		m.states[found.identity] = found
	}
	return failed
}

func openState(path string, parts []string) (*state, error) {
	if len(parts) != 3 {
		return nil, errors.New("it is not the pin of a shared map")
	}
	shared, err := ebpf.LoadPinnedMap(path, nil)
	if err != nil {
		return nil, fmt.Errorf("opening a map that programs share: %w", err)
	}
	return stateOf(parts[1], parts[2], shared)
}

// keepState puts the map into the place of the one that the policy had by this name. Old
// versions of programs keep that one.
func (m *Manager) keepState(next *state) error {
	before := m.states[next.identity]
	m.states[next.identity] = next
	if before == nil {
		return nil
	}
	return errors.Join(unpin(m.pin(before.pinName())), before.close())
}

// forgetStates lets go of the maps that no program of the plan shares any more.
func (m *Manager) forgetStates(planned []v1alpha1.PlanProgram) (failed error) {
	wanted := map[string]bool{}
	for i := range planned {
		for _, shared := range planned[i].SharedState {
			wanted[stateIdentity(&planned[i], &shared)] = wanted[stateIdentity(&planned[i], &shared)] || isOwn(&planned[i], &shared)
		}
	}
	for identity, s := range m.states {
		if wanted[identity] {
			continue
		}
		delete(m.states, identity)
		failed = errors.Join(failed, unpin(m.pin(s.pinName())), s.close())
	}
	return failed
}

// isOwn: the policy of the program has the map, and not another one.
func isOwn(program *v1alpha1.PlanProgram, shared *v1alpha1.SharedState) bool {
	return shared.Policy == "" || shared.Policy == program.Policy
}

func stateIdentity(program *v1alpha1.PlanProgram, shared *v1alpha1.SharedState) string {
	if isOwn(program, shared) {
		return identity(Key(program.Policy, shared.Name))
	}
	return identity(Key(shared.Policy, shared.Name))
}

// binding is a map that a program is to share.
type binding struct {
	name   string
	own    bool
	layout *layout
	state  *state // nil where it is still to be made
	id     string // of the state
}

// mark stands for the map in the content of a program: with another one the program has
// to be loaded anew.
func (b *binding) mark() []byte {
	if b.state == nil {
		return []byte(b.name + " new " + b.layout.hash())
	}
	return []byte(b.name + " " + strconv.Itoa(int(b.state.id)))
}

// bindings finds the maps that a program is to share, of those that there are.
func (m *Manager) bindings(c *candidate, agreed map[string]*agreement) (found []*binding, err error) {
	for i := range c.SharedState {
		shared := &c.SharedState[i]
		b := &binding{name: shared.Name, own: isOwn(c.PlanProgram, shared), layout: c.layouts[shared.Name], id: stateIdentity(c.PlanProgram, shared)}
		b.state = m.states[b.id]
		switch {
		case b.own && b.state != nil && b.state.layout != b.layout.hash():
			b.state = nil
		case !b.own && b.state == nil:
			return nil, fmt.Errorf("policy %s has no program on this node that shares map %s", shared.Policy, shared.Name)
		case !b.own && b.state.layout != b.layout.hash():
			return nil, agreed[b.id].refuse(b, "in policy "+shared.Policy)
		}
		found = append(found, b)
	}
	return found, nil
}

// contentWith is that of a program together with the maps that it shares.
func contentWith(object string, shared []*binding) string {
	if len(shared) == 0 {
		return object
	}
	parts := [][]byte{[]byte(object)}
	for _, b := range shared {
		parts = append(parts, b.mark())
	}
	return shortHash(parts...)
}

// make makes the maps that are not there yet, and pins them.
func (m *Manager) make(source []byte, shared []*binding) error {
	var spec *ebpf.CollectionSpec
	for _, b := range shared {
		if b.state != nil {
			continue
		}
		if spec == nil {
			var err error
			if spec, err = readObject(source); err != nil {
				return err
			}
		}
		made, err := newState(b.id, b.layout.hash(), spec.Maps[b.name])
		if err != nil {
			return err
		}
		b.state = made
		if err := made.shared.Pin(m.pin(made.pinName())); err != nil {
			return fmt.Errorf("pinning a map that programs share: %w", err)
		}
	}
	return nil
}

// keep makes the maps those of the policy, or unmake lets go of them again.
func (m *Manager) keep(shared []*binding) (failed error) {
	for _, b := range shared {
		if m.states[b.id] != b.state {
			failed = errors.Join(failed, m.keepState(b.state))
		}
	}
	return failed
}

func (m *Manager) unmake(shared []*binding) (failed error) {
	for _, b := range shared {
		if b.state != nil && m.states[b.id] != b.state {
			failed = errors.Join(failed, unpin(m.pin(b.state.pinName())), b.state.close())
			b.state = nil
		}
	}
	return failed
}

// sharedBy are the maps as loading a program wants them.
func sharedBy(bindings []*binding) (shared []Shared) {
	for _, b := range bindings {
		shared = append(shared, Shared{Name: b.name, Map: b.state.shared, ReadOnly: !b.own})
	}
	return shared
}
