// SPDX-License-Identifier: Apache-2.0

// Package attach puts packet programs on interfaces: by TCX, and by filters of
// the clsact qdisc on kernels before 6.6. What it attaches stays when the agent
// ends, and the next agent replaces it in one step.
package attach

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// Hook is one of the places on an interface where a program of ours runs.
type Hook struct {
	// Name of the program, and of its pins and filters. No two hooks have the same.
	Name string
	// Type is AttachTCXIngress or AttachTCXEgress.
	Type ebpf.AttachType
	// Anchor is the program's place among those of others, where TCX knows one.
	Anchor func() link.Anchor
	// First moves a program that is not the first one any more, because one before it may
	// end the run. While it is moved, for some milliseconds, it does not run. No two hooks of
	// one direction of an interface may ask for it, but for one that comes After the other.
	First bool
	// Last moves a program that is not the last one any more, as First does.
	Last bool
	// After is the program of an interface right after which this one comes, and is moved
	// to as with First; 0 for none.
	After func(index int) ebpf.ProgramID
	// Handle is the number of the filter, where TCX is not known; hooks of one
	// direction have different ones.
	Handle uint32
	// Priority of the filter, where TCX is not known: filters run by it. 0 for that of most.
	Priority uint16
}

// Options of Interfaces.
type Options struct {
	// LinkDirectory is a directory on a BPF file system for these hooks alone.
	LinkDirectory string
	// Hooks that each interface gets.
	Hooks []Hook
	// Clsact attaches by filters also where the kernel knows TCX.
	Clsact bool
}

// Interfaces are those of the calling thread's network namespace, and what is
// attached to them. They are not safe for concurrent use.
type Interfaces struct {
	options Options
	used    attacher // nil before Choose
	// other is the way of attaching that is not used, until it is known that an
	// earlier agent left nothing attached that way.
	other attacher
	links map[string]link.ID // by their pins
}

// attacher puts programs on interfaces and takes them off again.
type attacher interface {
	// attach puts program on the interface, or replaces the one of an earlier agent
	// in one step, so that no packet passes unseen.
	attach(index int, hook Hook, program *ebpf.Program) error
	// holds is true where that was seen to be done.
	holds(seen Seen, index int, hook Hook, program *ebpf.Program) bool
	// attached lists the interfaces that have a program of ours.
	attached() (map[int]bool, error)
	// detach takes all programs off the interface; it is no error if there are none.
	detach(index int) error
}

// New prepares; nothing is attached yet.
func New(options Options) *Interfaces {
	return &Interfaces{options: options, links: map[string]link.ID{}}
}

func (i *Interfaces) tcx() attacher { return tcx{i.options.LinkDirectory, i.options.Hooks, i.links} }

func (i *Interfaces) clsact() attacher { return clsact{i.options.Hooks} }

// Choose decides by what to attach. To ask the kernel it attaches the program to
// the loopback interface for a moment: that must change no packet.
func (i *Interfaces) Choose(program *ebpf.Program) error {
	supported, err := SupportsTCX(program)
	if err != nil {
		return err
	}
	i.used, i.other = i.clsact(), i.tcx()
	if supported && !i.options.Clsact {
		i.used, i.other = i.other, i.used
	}
	return nil
}

// Mode is how programs are attached: "tcx", "clsact", or "" before Choose.
func (i *Interfaces) Mode() string {
	switch i.used.(type) {
	case tcx:
		return "tcx"
	case clsact:
		return "clsact"
	}
	return ""
}

// Attach puts the programs of the hooks, in their order, on an interface, in the
// place of those that it has. It needs Choose.
func (i *Interfaces) Attach(index int, programs ...*ebpf.Program) error {
	return i.Ensure(nil, index, programs...)
}

// Ensure does what Attach does, and nothing for programs that were seen in their places:
// what is seen must be of this moment.
func (i *Interfaces) Ensure(seen Seen, index int, programs ...*ebpf.Program) error {
	var failed error
	for at, hook := range i.options.Hooks {
		if !i.used.holds(seen, index, hook, programs[at]) {
			failed = errors.Join(failed, i.used.attach(index, hook, programs[at]))
		}
	}
	return failed
}

// Attached are the indexes of the interfaces that have a program of ours. It
// needs Choose.
func (i *Interfaces) Attached() (map[int]bool, error) { return i.used.attached() }

// Detach takes our programs off an interface. It needs Choose.
func (i *Interfaces) Detach(index int) error { return i.used.detach(index) }

// AttachOnly puts the programs on exactly these interfaces. One that fails does not keep the
// others from working.
func (i *Interfaces) AttachOnly(wanted map[int]bool, programs ...*ebpf.Program) (failed error) {
	var seen Seen
	if len(wanted) > 0 {
		seen = Look()
	}
	for index := range wanted {
		failed = errors.Join(failed, i.Ensure(seen, index, programs...))
	}
	return errors.Join(failed, i.DetachOthers(func(index int) bool { return wanted[index] }))
}

// DetachOthers takes our programs off all interfaces but those that stay, and off all that
// have them in the other way of attaching.
func (i *Interfaces) DetachOthers(stays func(index int) bool) error {
	attached, failed := i.Attached()
	for index := range attached {
		if !stays(index) {
			failed = errors.Join(failed, i.Detach(index))
		}
	}
	return errors.Join(failed, i.DetachOther())
}

// DetachOther takes off what an earlier agent attached in the other way, after
// this one took over.
func (i *Interfaces) DetachOther() error {
	if i.other == nil {
		return nil
	}
	if err := detachAll(i.other); err != nil {
		return err
	}
	i.other = nil
	return nil
}

// Remove takes off everything, however it was attached. It needs no Choose, and
// after it Mode is "".
func (i *Interfaces) Remove() error {
	i.used, i.other = nil, nil
	return errors.Join(detachAll(i.tcx()), detachAll(i.clsact()))
}

func detachAll(attacher attacher) error {
	attached, failed := attacher.attached()
	for index := range attached {
		failed = errors.Join(failed, attacher.detach(index))
	}
	return failed
}
