// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/api/v1alpha1"
)

// What keeps a program in use without the agent is one pin, whose name says all
// that the next agent has to know: kind, slot, identity, content, algorithm. A
// schedule has a second one, of the map that the agent fills, and what programs share
// has its own (state.go).
const (
	pinsDirectory = "programs"
	slotPin       = "slot"
	schedulePin   = "schedule"
	congestionPin = "congestion"
	namespacesPin = "namespaces"
)

// hashLength is how much of a hash names a program or its content, in hex digits.
const hashLength = 24

func shortHash(parts ...[]byte) string {
	hash := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(hash, "%d:", len(part))
		hash.Write(part)
	}
	return hex.EncodeToString(hash.Sum(nil))[:hashLength]
}

// identity stands for a program's key in names of pins.
func identity(key string) string { return shortHash([]byte(key)) }

func contentOf(b *v1alpha1.PlanProgram, source []byte) string {
	return shortHash([]byte(b.Type), []byte(b.Function), source)
}

// inUse is a program that chains, sockets or the kernel's list of algorithms refer to.
type inUse struct {
	kind      string // slotPin, schedulePin or congestionPin
	slot      uint32
	identity  string
	content   string
	algorithm string

	program    *ebpf.Program // of a slot
	link       link.Link     // of the others
	namespaces *ebpf.Map     // of a schedule
}

func (u *inUse) pinName() string {
	return strings.Join([]string{u.kind, strconv.Itoa(int(u.slot)), u.identity, u.content, u.algorithm}, "-")
}

func (u *inUse) namespacesPinName() string {
	return strings.Join([]string{namespacesPin, u.identity, u.content}, "-")
}

// parsePin is the reverse of pinName.
func parsePin(name string) (*inUse, error) {
	parts := strings.Split(name, "-")
	if len(parts) != 5 || !slices.Contains([]string{slotPin, schedulePin, congestionPin}, parts[0]) {
		return nil, fmt.Errorf("%q is not the pin of a program", name)
	}
	slot, err := strconv.ParseUint(parts[1], 10, 32)
	if err != nil || slot >= MaxSlots || len(parts[2]) != hashLength || len(parts[3]) != hashLength {
		return nil, fmt.Errorf("%q is not the pin of a program", name)
	}
	return &inUse{kind: parts[0], slot: uint32(slot), identity: parts[2], content: parts[3], algorithm: parts[4]}, nil
}

func (m *Manager) directory() string { return filepath.Join(m.options.PinPath, pinsDirectory) }

func (m *Manager) pin(name string) string { return filepath.Join(m.directory(), name) }

func unpin(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing a pin: %w", err)
	}
	return nil
}

// close lets go of the program; pinned it goes on.
func (u *inUse) close() error {
	var failed error
	if u.program != nil {
		failed = errors.Join(failed, u.program.Close())
	}
	if u.link != nil {
		failed = errors.Join(failed, u.link.Close())
	}
	if u.namespaces != nil {
		failed = errors.Join(failed, u.namespaces.Close())
	}
	return failed
}

// recover finds what an earlier agent left in use. What cannot be used any more is
// removed: its program is loaded anew.
func (m *Manager) recover() error {
	if err := os.MkdirAll(m.directory(), 0o700); err != nil {
		return fmt.Errorf("making the directory of pins: %w", err)
	}
	entries, err := os.ReadDir(m.directory())
	if err != nil {
		return fmt.Errorf("listing the pins of programs: %w", err)
	}
	m.inUse = map[string]*inUse{}
	failed := m.recoverStates(entries)
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), namespacesPin+"-") || strings.HasPrefix(entry.Name(), statePin+"-") {
			continue
		}
		if err := m.takeOver(entry.Name()); err != nil {
			m.options.Log.Info("a pinned program is not as its object now, loading the object again", "pin", entry.Name(), "reason", err.Error())
			failed = errors.Join(failed, unpin(m.pin(entry.Name())))
		}
	}
	return errors.Join(failed, m.forgetNamespaces(entries))
}

func (m *Manager) takeOver(name string) error {
	found, err := parsePin(name)
	if err != nil {
		return err
	}
	if m.inUse[found.identity] != nil {
		return errors.New("the program was being replaced")
	}
	if err := m.open(found); err != nil {
		return errors.Join(err, found.close())
	}
	m.inUse[found.identity] = found
	return nil
}

func (m *Manager) open(found *inUse) (err error) {
	path := m.pin(found.pinName())
	if found.kind == slotPin {
		if found.program, err = ebpf.LoadPinnedProgram(path, nil); err != nil {
			return fmt.Errorf("opening a pinned program: %w", err)
		}
		return m.callAgain(found)
	}
	if found.link, err = link.LoadPinnedLink(path, nil); err != nil {
		return fmt.Errorf("opening a pinned program: %w", err)
	}
	if found.kind == schedulePin {
		if found.namespaces, err = ebpf.LoadPinnedMap(m.pin(found.namespacesPinName()), nil); err != nil {
			return fmt.Errorf("opening the namespaces of a pinned schedule: %w", err)
		}
	}
	return nil
}

// callAgain puts a program that an earlier agent loaded into its slot, unless it
// was loaded for chains that are gone.
func (m *Manager) callAgain(found *inUse) error {
	uses, err := usesMap(found.program, m.options.BlockContext)
	if err != nil {
		return err
	}
	if !uses {
		return errors.New("it was loaded for other chains")
	}
	if err := m.options.CustomBlocks.Put(found.slot, found.program); err != nil {
		return fmt.Errorf("calling a pinned program: %w", err)
	}
	return nil
}

func usesMap(program *ebpf.Program, wanted *ebpf.Map) (bool, error) {
	programInfo, err := program.Info()
	if err != nil {
		return false, fmt.Errorf("asking for a program's maps: %w", err)
	}
	mapInfo, err := wanted.Info()
	if err != nil {
		return false, fmt.Errorf("asking for the chains' map: %w", err)
	}
	ids, known := programInfo.MapIDs()
	id, there := mapInfo.ID()
	return known && there && slices.Contains(ids, id), nil
}

// forgetNamespaces removes the maps of schedules that are gone.
func (m *Manager) forgetNamespaces(entries []os.DirEntry) error {
	var failed error
	kept := map[string]bool{}
	for _, block := range m.inUse {
		kept[block.namespacesPinName()] = block.kind == schedulePin
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), namespacesPin+"-") && !kept[entry.Name()] {
			failed = errors.Join(failed, unpin(m.pin(entry.Name())))
		}
	}
	return failed
}
