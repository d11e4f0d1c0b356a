// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// tcx attaches by links (Linux 6.6 and later), pinned in a directory.
type tcx struct {
	directory string
	hooks     []Hook
	links     map[string]link.ID // by their pins, as far as this process attached or updated them
}

func (t tcx) pin(hook Hook, index int) string {
	return filepath.Join(t.directory, hook.Name+"_"+strconv.Itoa(index))
}

func (t tcx) holds(seen Seen, index int, hook Hook, program *ebpf.Program) bool {
	pin := t.pin(hook, index)
	id, known := t.links[pin]
	return known && seen.has(id, index, hook, program) && exists(pin)
}

func (t tcx) attach(index int, hook Hook, program *ebpf.Program) error {
	if err := os.MkdirAll(t.directory, 0o700); err != nil {
		return fmt.Errorf("making the directory of links: %w", err)
	}
	pin := t.pin(hook, index)
	if updated, err := t.updatePinned(pin, index, program); err != nil || updated && isInPlace(index, hook, program) {
		return err
	}
	if err := t.detachPinned(pin); err != nil {
		return err
	}
	attached, err := link.AttachTCX(link.TCXOptions{
		Interface: index,
		Program:   program,
		Attach:    hook.Type,
		Anchor:    anchorOf(index, hook),
	})
	if err != nil {
		return fmt.Errorf("attaching %s to interface %d: %w", hook.Name, index, err)
	}
	defer attached.Close()
	if err := attached.Pin(pin); err != nil {
		return fmt.Errorf("pinning the link of %s on interface %d: %w", hook.Name, index, err)
	}
	if info, err := attached.Info(); err == nil {
		t.links[pin] = info.ID
	}
	return nil
}

// isInPlace is true too where nobody can tell.
func isInPlace(index int, hook Hook, program *ebpf.Program) bool {
	after := predecessor(index, hook)
	if !hook.First && !hook.Last && after == 0 {
		return true
	}
	info, err := program.Info()
	if err != nil {
		return true
	}
	own, _ := info.ID()
	all := ProgramsAt(index, hook.Type)
	at := slices.Index(all, own)
	switch {
	case hook.Last:
		return at < 0 || at == len(all)-1
	case after == 0:
		return at <= 0
	}
	return at < 0 || at > 0 && all[at-1] == after
}

func anchorOf(index int, hook Hook) link.Anchor {
	if after := predecessor(index, hook); after != 0 {
		return link.AfterProgramByID(after)
	}
	return hook.Anchor()
}

// ProgramsAt are those that are attached by TCX to an interface, in their order; none where the
// kernel does not tell.
func ProgramsAt(index int, at ebpf.AttachType) (ids []ebpf.ProgramID) {
	query, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: at})
	if err != nil {
		return nil
	}
	for _, program := range query.Programs {
		ids = append(ids, program.ID)
	}
	return ids
}

// NameOf is the name of a program; empty for one that has gone meanwhile.
func NameOf(id ebpf.ProgramID) string {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// predecessor is the program after which a hook's program comes; 0 where it is not there.
func predecessor(index int, hook Hook) ebpf.ProgramID {
	if hook.After == nil {
		return 0
	}
	if id := hook.After(index); slices.Contains(ProgramsAt(index, hook.Type), id) {
		return id
	}
	return 0
}

// updatePinned gives an earlier agent's link the new program. It returns false
// where there is no such link, or where its interface is gone and the pin with it.
func (t tcx) updatePinned(pin string, index int, program *ebpf.Program) (bool, error) {
	pinned, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("loading the pinned link %s: %w", pin, err)
	}
	defer pinned.Close()
	if info, err := pinned.Info(); err == nil && info.TCX() != nil && int(info.TCX().Ifindex) == index {
		if err := pinned.Update(program); err != nil {
			return false, fmt.Errorf("updating the pinned link %s: %w", pin, err)
		}
		t.links[pin] = info.ID
		return true, nil
	}
	if err := pinned.Unpin(); err != nil {
		return false, fmt.Errorf("removing the link %s of an interface that is gone: %w", pin, err)
	}
	return false, nil
}

func (t tcx) attached() (map[int]bool, error) {
	entries, err := os.ReadDir(t.directory)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("reading the directory of links: %w", err)
	}
	indexes := map[int]bool{}
	for _, entry := range entries {
		name := entry.Name()
		if index, err := strconv.Atoi(name[strings.LastIndexByte(name, '_')+1:]); err == nil {
			indexes[index] = true
		}
	}
	return indexes, nil
}

func (t tcx) detach(index int) error {
	var failed error
	for _, hook := range t.hooks {
		if err := t.detachPinned(t.pin(hook, index)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("detaching %s from interface %d: %w", hook.Name, index, err))
		}
	}
	return failed
}

// detachPinned detaches a program at once; removing the pin alone lets it run on
// until the kernel gets to it.
func (t tcx) detachPinned(pin string) error {
	delete(t.links, pin)
	pinned, err := link.LoadPinnedLink(pin, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("loading the pinned link: %w", err)
	}
	defer pinned.Close()
	return errors.Join(pinned.Detach(), pinned.Unpin())
}

// loopback is the index that every network namespace gives its loopback interface.
const loopback = 1

// SupportsTCX tells whether this kernel does. It attaches the program to the loopback interface for a moment: the
// program changes no packet, and the kernel's answer says whether it knows TCX.
func SupportsTCX(program *ebpf.Program) (bool, error) {
	attached, err := link.AttachTCX(link.TCXOptions{
		Interface: loopback,
		Program:   program,
		Attach:    ebpf.AttachTCXIngress,
		Anchor:    link.Tail(),
	})
	switch {
	case errors.Is(err, ebpf.ErrNotSupported):
		return false, nil
	case errors.Is(err, os.ErrExist): // somebody asks by the same program just now
		return true, nil
	case err != nil:
		return false, fmt.Errorf("asking the kernel for TCX: %w", err)
	}
	return true, errors.Join(attached.Detach(), attached.Close())
}
