// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// describe says how a type is laid out; equal layouts have equal descriptions.
func describe(t btf.Type) string {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		return fmt.Sprintf("struct of %d%s", t.Size, describeMembers(t.Members))
	case *btf.Union:
		return fmt.Sprintf("union of %d%s", t.Size, describeMembers(t.Members))
	case *btf.Array:
		return fmt.Sprintf("[%d]%s", t.Nelems, describe(t.Type))
	default:
		size, err := btf.Sizeof(t)
		if err != nil {
			return t.TypeName()
		}
		return fmt.Sprint(size)
	}
}

func describeMembers(members []btf.Member) string {
	var text strings.Builder
	for _, m := range members {
		fmt.Fprintf(&text, " %s@%d/%d(%s)", m.Name, m.Offset, m.BitfieldSize, describe(m.Type))
	}
	return text.String()
}

// move is bytes of an old value that belong somewhere in a new one.
type move struct{ from, to, size uint32 }

// movesOf finds what two types have in common: members of the same name, elements
// of the same place. Everything else of the new one is zero.
func movesOf(from, to btf.Type, fromAt, toAt uint32) []move {
	from, to = btf.UnderlyingType(from), btf.UnderlyingType(to)
	if describe(from) == describe(to) {
		size, err := btf.Sizeof(to)
		if err != nil {
			return nil
		}
		return []move{{fromAt, toAt, uint32(size)}}
	}
	switch wanted := to.(type) {
	case *btf.Struct:
		if old, ok := from.(*btf.Struct); ok {
			return movesOfMembers(old, wanted, fromAt, toAt)
		}
	case *btf.Array:
		if old, ok := from.(*btf.Array); ok {
			return movesOfElements(old, wanted, fromAt, toAt)
		}
	}
	return nil
}

func movesOfMembers(from, to *btf.Struct, fromAt, toAt uint32) (moves []move) {
	for _, m := range to.Members {
		i := slices.IndexFunc(from.Members, func(old btf.Member) bool { return old.Name == m.Name })
		if i < 0 || m.BitfieldSize > 0 || from.Members[i].BitfieldSize > 0 {
			continue
		}
		old := from.Members[i]
		moves = append(moves, movesOf(old.Type, m.Type, fromAt+old.Offset.Bytes(), toAt+m.Offset.Bytes())...)
	}
	return moves
}

func movesOfElements(from, to *btf.Array, fromAt, toAt uint32) (moves []move) {
	fromSize, err := btf.Sizeof(from.Type)
	if err != nil {
		return nil
	}
	toSize, err := btf.Sizeof(to.Type)
	if err != nil {
		return nil
	}
	for i := range min(from.Nelems, to.Nelems) {
		moves = append(moves, movesOf(from.Type, to.Type, fromAt+i*uint32(fromSize), toAt+i*uint32(toSize))...)
	}
	return moves
}

// isNoMatter is true for an entry that is there already, or that the new map has no
// room for.
func isNoMatter(err error) bool {
	return errors.Is(err, ebpf.ErrKeyExist) || errors.Is(err, unix.E2BIG)
}
