// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// readerFunctions are the kernel's functions that a congestion control may call that
// reads maps of another policy. Some of the others write to where a program says, and
// kernels before 6.12 let them write to what is read-only for programs.
var readerFunctions = []asm.BuiltinFunc{
	asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnForEachMapElem, asm.FnLoop,
	asm.FnKtimeGetNs, asm.FnKtimeGetCoarseNs, asm.FnKtimeGetBootNs, asm.FnJiffies64, asm.FnGetPrandomU32, asm.FnGetSmpProcessorId,
	asm.FnSkStorageGet, asm.FnSkStorageDelete, asm.FnTcpSendAck,
}

func namesOf(shared []Shared) (names []string) {
	for i := range shared {
		names = append(names, shared[i].Name)
	}
	return names
}

func mapsOf(shared []Shared) map[string]*ebpf.Map {
	maps := map[string]*ebpf.Map{}
	for i := range shared {
		maps[shared[i].Name] = shared[i].Map
	}
	return maps
}

// judgeShared refuses a program that does not use what it is to share: most often it, or
// the policy, has another name for it.
func judgeShared(spec *ebpf.CollectionSpec, shared []Shared) error {
	for i := range shared {
		if spec.Maps[shared[i].Name] == nil {
			return refuse("the program does not use map ", shared[i].Name, ", which sharedState of the policy names")
		}
	}
	return nil
}

// judgeReaders does so with congestion controls that call more than is known to leave
// maps of another policy alone.
func judgeReaders(spec *ebpf.CollectionSpec, shared []Shared) error {
	if !slices.ContainsFunc(shared, func(s Shared) bool { return s.ReadOnly }) {
		return nil
	}
	for _, program := range spec.Programs {
		if err := judgeFunctions(program, readerFunctions); err != nil {
			return err
		}
	}
	return nil
}

// readOnlyViews is a copy of a program with maps of its own, of which those that it may
// only read are read-only for programs. What the verifier lets pass with these writes to
// none of them, whatever maps take their places.
func readOnlyViews(spec *ebpf.CollectionSpec, shared []Shared) *ebpf.CollectionSpec {
	views := spec.Copy()
	for i := range shared {
		if shared[i].ReadOnly {
			views.Maps[shared[i].Name].Flags |= unix.BPF_F_RDONLY_PROG
		}
	}
	return views
}

// loadShared loads a program with the maps that it shares, once the kernel has found that
// it only reads those of other policies.
func loadShared(spec *ebpf.CollectionSpec, shared []Shared) (*ebpf.Collection, error) {
	if slices.ContainsFunc(shared, func(s Shared) bool { return s.ReadOnly }) {
		tried, err := loadWith(readOnlyViews(spec, shared), nil)
		if err != nil {
			return nil, err
		}
		tried.Close()
	}
	return loadWith(spec, mapsOf(shared))
}
