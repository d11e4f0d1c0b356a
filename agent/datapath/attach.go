// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// hook is one of the two places on a NIC where a program of ours runs.
type hook struct {
	name   string // of the program, and of its pins and filters
	attach ebpf.AttachType
	// anchor: at the egress our program is last, because it may send the packet
	// elsewhere and the others shall have seen it; at the ingress it is first,
	// because it only looks, and others may end the chain.
	anchor  func() link.Anchor
	program func(*objects) *ebpf.Program
}

var hooks = []hook{
	{"to_uplink", ebpf.AttachTCXEgress, link.Tail, func(o *objects) *ebpf.Program { return o.toUplink.ToUplink }},
	{"from_uplink", ebpf.AttachTCXIngress, link.Head, func(o *objects) *ebpf.Program { return o.fromUplink.FromUplink }},
}

// attacher puts the programs on NICs and takes them off again.
type attacher interface {
	// attach puts program on the NIC, or replaces the one of an earlier agent
	// in one step, so that no packet passes unseen.
	attach(index int, hook hook, program *ebpf.Program) error
	// attached lists the NICs that have a program of ours.
	attached() (map[int]bool, error)
	// detach takes both programs off the NIC; it is no error if there are none.
	detach(index int) error
}

// tcx attaches by links (Linux 6.6 and later), pinned in a directory.
type tcx struct{ directory string }

func (t tcx) pin(hook hook, index int) string {
	return filepath.Join(t.directory, hook.name+"_"+strconv.Itoa(index))
}

func (t tcx) attach(index int, hook hook, program *ebpf.Program) error {
	if err := os.MkdirAll(t.directory, 0o700); err != nil {
		return fmt.Errorf("making the directory of links: %w", err)
	}
	pin := t.pin(hook, index)
	if updated, err := updatePinned(pin, index, program); updated || err != nil {
		return err
	}
	attached, err := link.AttachTCX(link.TCXOptions{
		Interface: index,
		Program:   program,
		Attach:    hook.attach,
		Anchor:    hook.anchor(),
	})
	if err != nil {
		return fmt.Errorf("attaching %s to interface %d: %w", hook.name, index, err)
	}
	defer attached.Close()
	if err := attached.Pin(pin); err != nil {
		return fmt.Errorf("pinning the link of %s on interface %d: %w", hook.name, index, err)
	}
	return nil
}

// updatePinned gives an earlier agent's link the new program. It returns false
// where there is no such link, or where its NIC is gone and the pin with it.
func updatePinned(pin string, index int, program *ebpf.Program) (bool, error) {
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
		return true, nil
	}
	if err := pinned.Unpin(); err != nil {
		return false, fmt.Errorf("removing the link %s of a NIC that is gone: %w", pin, err)
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
	for _, hook := range hooks {
		if err := detachPinned(t.pin(hook, index)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("detaching %s from interface %d: %w", hook.name, index, err))
		}
	}
	return failed
}

// detachPinned detaches a program at once; removing the pin alone lets it run on
// until the kernel gets to it.
func detachPinned(pin string) error {
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

// supportsTCX attaches the program to the loopback interface for a moment: the
// program changes no packet, and the kernel's answer says whether it knows TCX.
func supportsTCX(program *ebpf.Program) (bool, error) {
	attached, err := link.AttachTCX(link.TCXOptions{
		Interface: loopback,
		Program:   program,
		Attach:    ebpf.AttachTCXIngress,
		Anchor:    link.Tail(),
	})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("asking the kernel for TCX: %w", err)
	}
	return true, attached.Close()
}
