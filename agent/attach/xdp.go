// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	// ErrUnsupported is of an interface whose driver runs no program at the XDP hook.
	ErrUnsupported = errors.New("no native XDP")
	// ErrOccupied is of an interface that has another's program there, which stays.
	ErrOccupied = errors.New("another program is at the XDP hook")
)

// NativeXDP puts one program on the XDP hook of interfaces, where their drivers run it
// (XDP_FLAGS_DRV_MODE). Without a driver that does, the kernel would run it after it has
// made its packet of the frame, later than TC is worth: that is never asked for. Links are
// pinned: the next agent gives them its program in one step.
type NativeXDP struct {
	// Directory is one on a BPF file system for these links alone.
	Directory string
}

func (x NativeXDP) tcx() tcx {
	return tcx{x.Directory, []Hook{xdpHook}, map[string]link.ID{}}
}

var xdpHook = Hook{Name: "at_nic"}

func (x NativeXDP) pin(index int) string { return x.tcx().pin(xdpHook, index) }

// Attach puts the program on an interface, or gives the link that is there the program. It
// returns ErrUnsupported and ErrOccupied where that cannot be, and has changed nothing then.
func (x NativeXDP) Attach(index int, program *ebpf.Program) error {
	all, err := whole(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("listing interfaces: %w", err)
	}
	if err := suits(index, all); err != nil {
		return errors.Join(err, x.tcx().detach(index))
	}
	updated, err := x.update(index, program)
	if err != nil || updated {
		return err
	}
	if err := isFree(index); err != nil {
		return err
	}
	attached, err := link.AttachXDP(link.XDPOptions{Program: program, Interface: index, Flags: link.XDPDriverMode})
	if err != nil {
		return fmt.Errorf("attaching to the XDP hook of interface %d: %w", index, explain(err))
	}
	defer attached.Close()
	if err := os.MkdirAll(x.Directory, 0o700); err != nil {
		return fmt.Errorf("making the directory of links: %w", err)
	}
	if err := attached.Pin(x.pin(index)); err != nil {
		return fmt.Errorf("pinning the link at the XDP hook of interface %d: %w", index, err)
	}
	return nil
}

// explain: the kernel refuses a second program of any mode.
func explain(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: the driver refuses it", ErrUnsupported)
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return ErrOccupied
	}
	return err
}

// isFree says whose program an interface has that has none of ours.
func isFree(index int) error {
	device, err := netlink.LinkByIndex(index)
	if err != nil {
		return fmt.Errorf("looking up interface %d: %w", index, err)
	}
	if xdp := device.Attrs().Xdp; xdp != nil && xdp.Attached {
		return fmt.Errorf("%w: %s (id %d)", ErrOccupied, programName(ebpf.ProgramID(xdp.ProgId)), xdp.ProgId)
	}
	return nil
}

// suits says why a program would not see what it takes a frame for, by all interfaces.
func suits(index int, all []netlink.Link) error {
	for _, device := range all {
		kind, is := device.Type(), device.Attrs()
		if is.Index == index && (kind == "bond" || kind == "team") {
			return fmt.Errorf("%w: a program of a %s runs at its NICs", ErrUnsupported, kind)
		}
		if kind == "vlan" && is.ParentIndex == index {
			return fmt.Errorf("%w: it has VLANs (%s), and drivers may hide their tags from the program", ErrUnsupported, is.Name)
		}
	}
	return nil
}

func programName(id ebpf.ProgramID) string {
	program, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return "one"
	}
	defer program.Close()
	info, err := program.Info()
	if err != nil || info.Name == "" {
		return "one without a name"
	}
	return info.Name
}

// update gives the link that an earlier agent pinned the program. It returns false where
// there is none, or its interface is gone and the pin with it.
func (x NativeXDP) update(index int, program *ebpf.Program) (bool, error) {
	pinned, err := link.LoadPinnedLink(x.pin(index), nil)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("loading the pinned link at the XDP hook of interface %d: %w", index, err)
	}
	defer pinned.Close()
	if info, err := pinned.Info(); err == nil && info.XDP() != nil && int(info.XDP().Ifindex) == index {
		if err := pinned.Update(program); err != nil {
			return false, fmt.Errorf("updating the link at the XDP hook of interface %d: %w", index, err)
		}
		return true, nil
	}
	if err := pinned.Unpin(); err != nil {
		return false, fmt.Errorf("removing the link of an interface that is gone: %w", err)
	}
	return false, nil
}

// DetachOthers takes the program off all interfaces but those that stay.
func (x NativeXDP) DetachOthers(stays func(index int) bool) error {
	t := x.tcx()
	attached, failed := t.attached()
	for index := range attached {
		if !stays(index) {
			failed = errors.Join(failed, t.detach(index))
		}
	}
	return failed
}

// Remove takes it off all interfaces, and leaves no directory.
func (x NativeXDP) Remove() error {
	failed := x.DetachOthers(func(int) bool { return false })
	if err := os.RemoveAll(filepath.Clean(x.Directory)); err != nil {
		failed = errors.Join(failed, fmt.Errorf("removing the directory of links: %w", err))
	}
	return failed
}
