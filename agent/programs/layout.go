// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

const (
	// maxStateEntries is how many entries a map that programs share may have.
	maxStateEntries = 1 << 16
	// maxStateMemory bounds what the entries of all maps that a policy shares can hold,
	// in bytes.
	maxStateMemory = maxMapMemory
	// maxMembers and maxDepth bound what is looked at of the types of a shared map, which
	// may come from anyone who can write to the ConfigMap.
	maxMembers = 256
	maxDepth   = 8
)

// sharedKinds are the kinds of maps that programs may share: those that the kernel can
// make read-only for programs.
var sharedKinds = []ebpf.MapType{
	ebpf.Hash, ebpf.LRUHash, ebpf.Array, ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.PerCPUArray,
}

// layout is how a program declares a map that it shares, in lines that can be compared.
type layout struct {
	lines  []string
	memory uint64
}

// layoutOf refuses what cannot be shared.
func layoutOf(name string, m *ebpf.MapSpec) (*layout, error) {
	switch {
	case slices.Contains(reservedMaps, name) || name == contextMap || name == namespacesMap:
		return nil, refuse("map ", name, " has the name of one of Braid's maps, which programs cannot share: choose another")
	case m.Pinning != ebpf.PinNone:
		return nil, refuse("map ", name, " asks to be pinned: the agent pins what programs share")
	case !slices.Contains(sharedKinds, m.Type):
		return nil, refuse("map ", name, " is of type ", m.Type.String(), ", which programs cannot share")
	case m.MaxEntries > maxStateEntries:
		return nil, refuse(fmt.Sprintf("map %s has %d entries; one that programs share may have %d", name, m.MaxEntries, maxStateEntries))
	case m.Flags&^unix.BPF_F_NO_PREALLOC != 0:
		return nil, refuse(fmt.Sprintf("map %s has flags %#x; one that programs share may have BPF_F_NO_PREALLOC alone", name, m.Flags))
	case m.Key == nil || m.Value == nil:
		return nil, refuse("map ", name, " has no type information: declare it with __type(key, …) and __type(value, …), and compile with -g")
	}
	d := describer{lines: []string{
		"it is of type " + m.Type.String(), fmt.Sprintf("it has %d entries", m.MaxEntries), fmt.Sprintf("it has flags %#x", m.Flags),
	}}
	d.describe("its key", m.Key, 0)
	d.describe("its value", m.Value, 0)
	if d.problem != "" {
		return nil, refuse("map ", name, " cannot be shared: ", d.problem)
	}
	return &layout{lines: d.lines, memory: mapMemory(m)}, nil
}

// hash is the same for equal layouts, also of another agent.
func (l *layout) hash() string { return shortHash([]byte(strings.Join(l.lines, "\n"))) }

// difference says what two layouts do not have in common: what holds for this one, and
// for the other. Both are empty where they are equal.
func (l *layout) difference(other *layout) (here, there string) {
	for i := range max(len(l.lines), len(other.lines)) {
		here, there = "it has no more members", "it has no more members"
		if i < len(l.lines) {
			here = l.lines[i]
		}
		if i < len(other.lines) {
			there = other.lines[i]
		}
		if here != there {
			return here, there
		}
	}
	return "", ""
}

// describer writes down types until there is a problem.
type describer struct {
	lines   []string
	problem string
}

func (d *describer) describe(what string, of btf.Type, depth int) {
	of = btf.UnderlyingType(of)
	size, err := btf.Sizeof(of)
	switch {
	case d.problem != "":
		return
	case err != nil || depth > maxDepth || len(d.lines) > maxMembers:
		d.problem = what + " is of a type that is not known, or of too many parts"
		return
	}
	switch kind := of.(type) {
	case *btf.Struct:
		d.describeMembers(what, kind.Name, kind.Members, size, depth)
	case *btf.Union:
		d.describeMembers(what, kind.Name, kind.Members, size, depth)
	case *btf.Array:
		d.lines = append(d.lines, fmt.Sprintf("%s has %d elements", what, kind.Nelems))
		d.describe("each of "+what, kind.Type, depth+1)
	case *btf.Int, *btf.Enum:
		d.lines = append(d.lines, fmt.Sprintf("%s is a number of %d bytes%s", what, size, signed(of)))
	default:
		d.problem = what + " is neither a number nor made of numbers"
	}
}

func signed(of btf.Type) string {
	if number, ok := of.(*btf.Int); ok && number.Encoding&btf.Signed != 0 {
		return " with a sign"
	}
	return ""
}

// describeMembers: what the kernel itself keeps in values (struct bpf_spin_lock, struct
// bpf_timer) could be held against the other programs.
func (d *describer) describeMembers(what, name string, members []btf.Member, size, depth int) {
	if strings.HasPrefix(name, "bpf_") {
		d.problem = what + " has a struct " + name
		return
	}
	d.lines = append(d.lines, fmt.Sprintf("%s has %d bytes", what, size))
	for _, member := range members {
		at := fmt.Sprintf("%s, %s at bit %d", what, member.Name, member.Offset)
		if member.BitfieldSize != 0 {
			at += fmt.Sprintf(" of %d bits", member.BitfieldSize)
		}
		d.describe(at, member.Type, depth+1)
	}
}
