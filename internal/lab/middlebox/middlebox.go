// SPDX-License-Identifier: Apache-2.0

// Package middlebox has boxes that change TCP on its way, as those of the Internet do:
// for a path of a lab's network.
package middlebox

import (
	"fmt"
	"slices"
	"time"

	"braid.dev/braid/internal/lab/network"
)

// Kind is a way in which boxes change what passes.
type Kind struct {
	// Name says what such a box does.
	Name string
	// Rewrites says that plain TCP delivers other bytes than were sent, too.
	Rewrites bool
	// Checksums says that MPTCP must have its checksums to notice
	// (net.mptcp.checksum_enabled).
	Checksums bool
	// EndsMPTCP says that it leaves no MPTCP connection: they become plain TCP.
	EndsMPTCP bool
	// NoJoins says that it lets no further subflow through.
	NoJoins bool
	// NoAnnouncements says that it lets no announced address through.
	NoAnnouncements bool
	// KernelLoses says that Linux itself loses MPTCP connections there, or delivers
	// wrong bytes: docs/kernel-notes.md.
	KernelLoses bool
	// new makes what the box does to a segment.
	new func() changer
}

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{
		{Name: "strip_syn", EndsMPTCP: true, new: each(stripIf(isSYN, option.mptcp))},
		{Name: "strip_synack", EndsMPTCP: true, new: each(stripIf(isSYNACK, option.mptcp))},
		{Name: "strip_later", EndsMPTCP: true, new: each(stripIf(isLater, option.mptcp))},
		{Name: "strip_midway", KernelLoses: true, new: func() changer { return &midway{map[ends]int{}} }},
		{Name: "strip_add_addr", NoAnnouncements: true, new: each(stripIf(isLater, isSubtype(addAddress)))},
		{Name: "strip_join", NoJoins: true, new: each(stripIf(isAny, isSubtype(mpJoin)))},
		{Name: "nop", EndsMPTCP: true, new: each(replaceByNOPs)},
		{Name: "drop_syn", EndsMPTCP: true, new: each(dropIf(func(s *segment) bool { return isSYN(s) && s.hasMPTCP() }))},
		{Name: "drop_join", NoJoins: true, new: each(dropIf(isJoin))},
		{Name: "rewrite", Rewrites: true, new: func() changer { return newPayload(flipBytes) }},
		{Name: "rewrite_checksums", Rewrites: true, Checksums: true, KernelLoses: true, new: func() changer { return newPayload(flipBytes) }},
		{Name: "shorten", Rewrites: true, KernelLoses: true, new: func() changer { return newPayload(takeBytes) }},
		{Name: "shorten_checksums", Rewrites: true, Checksums: true, KernelLoses: true, new: func() changer { return newPayload(takeBytes) }},
		{Name: "sequences", new: func() changer { return newSequences() }},
		{Name: "nat", new: func() changer { return newTranslation() }},
		{Name: "split", new: each(split)},
		{Name: "join", KernelLoses: true, new: func() changer { return &joiner{held: map[ends]*heldSegment{}} }},
		{Name: "reorder", new: func() changer { return &everyNth{n: 20, do: later} }},
		{Name: "duplicate", new: func() changer { return &everyNth{n: 10, do: twice} }},
	}
}

// Named is the kind of a name.
func Named(name string) (Kind, bool) {
	kinds := Kinds()
	at := slices.IndexFunc(kinds, func(k Kind) bool { return k.Name == name })
	if at < 0 {
		return Kind{}, false
	}
	return kinds[at], true
}

// New makes such a box.
func (k Kind) New() network.Box { return box{k.new()} }

// passed is a segment that goes on.
type passed struct {
	*segment
	later time.Duration
}

// changer is what a box does to segments.
type changer interface {
	// pass takes a segment, and returns what goes on in its place.
	pass(s *segment) []passed
	// due returns what was held back long enough.
	due(now time.Time) []passed
}

// box reads and writes frames for a changer.
type box struct{ changer }

func (b box) Pass(port int, frame []byte) []network.Frame {
	s, ok := decode(port, frame)
	if !ok {
		return []network.Frame{{From: port, Data: frame}}
	}
	return frames(b.pass(s))
}

func (b box) Due(now time.Time) []network.Frame { return frames(b.due(now)) }

func frames(segments []passed) (frames []network.Frame) {
	for _, s := range segments {
		frames = append(frames, network.Frame{From: s.port, Later: s.later, Data: s.encode()})
	}
	return frames
}

// oneByOne is a changer that holds nothing back.
type oneByOne func(s *segment) []passed

func (f oneByOne) pass(s *segment) []passed { return f(s) }

func (oneByOne) due(time.Time) []passed { return nil }

// Prepare has a pod's namespace meet boxes of a kind: its sockets have MPTCP's checksums
// where the kind needs them, and it forgets that a box dropped MPTCP's SYNs. What is left
// of connections through another box, which would not end for a minute, is reset.
func Prepare(namespace *network.Namespace, kind Kind) error {
	checksums := "0"
	if kind.Checksums {
		checksums = "1"
	}
	if err := namespace.Sysctl("net.mptcp.checksum_enabled", checksums); err != nil {
		return err
	}
	const byDefault = "3600" // writing it ends what goes on
	if err := namespace.Sysctl("net.mptcp.blackhole_timeout", byDefault); err != nil {
		return err
	}
	if _, err := namespace.Run("ss", "--kill", "--tcp", "--numeric", "state", "connected"); err != nil {
		return fmt.Errorf("resetting connections: %w", err)
	}
	return nil
}
