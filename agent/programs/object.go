// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"braid.dev/braid/bpf/program"
)

const (
	// maxObject is the greatest size of a compiled program, in bytes. A ConfigMap
	// holds no more.
	maxObject = 1 << 20
	// maxMapMemory bounds what the entries of one program's maps can hold, in bytes.
	maxMapMemory = 16 << 20
	// contextMap is what a chain and its programs share.
	contextMap = program.TrialMapBlockContext
	// namespacesMap is what the agent fills for a program of type Schedule.
	namespacesMap = "block_namespaces"
)

// reservedMaps are the names of Braid's own maps. A program that declares one of
// them was meant to reach it, and cannot.
var reservedMaps = []string{
	"attachments", "attachments_overflow", "chains", "chain_counters", "subflows", "mptcp_connections", "bypass_cache", "steady_subflows",
	"path_interfaces", "events", "buckets", "paces", "netns_endpoints", "custom_blocks", "hidden_addresses",
	"node", "peers", "peer_addresses", "endpoints", "flows", "connections", "local_filter", "upgraded_namespaces",
}

// privateMaps are the kinds of maps that a program may have for itself.
var privateMaps = []ebpf.MapType{
	ebpf.Hash, ebpf.Array, ebpf.PerCPUHash, ebpf.PerCPUArray, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.LPMTrie,
	ebpf.Queue, ebpf.Stack, ebpf.RingBuf, ebpf.BloomFilter,
}

// actionFunctions are the kernel's functions that an action may call: those that
// read and change the packet, its own maps, and the time. None of them sends a
// packet elsewhere, reaches another program, or reads the kernel's memory.
var actionFunctions = []asm.BuiltinFunc{
	asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnMapPushElem, asm.FnMapPopElem, asm.FnMapPeekElem,
	asm.FnMapLookupPercpuElem, asm.FnForEachMapElem, asm.FnLoop, asm.FnSpinLock, asm.FnSpinUnlock,
	asm.FnKtimeGetNs, asm.FnKtimeGetCoarseNs, asm.FnKtimeGetBootNs, asm.FnJiffies64, asm.FnGetPrandomU32, asm.FnGetSmpProcessorId,
	asm.FnSkbLoadBytes, asm.FnSkbLoadBytesRelative, asm.FnSkbStoreBytes, asm.FnSkbPullData, asm.FnSkbChangeTail,
	asm.FnL3CsumReplace, asm.FnL4CsumReplace, asm.FnCsumDiff, asm.FnCsumUpdate, asm.FnCsumLevel,
	asm.FnRingbufReserve, asm.FnRingbufSubmit, asm.FnRingbufDiscard, asm.FnRingbufOutput, asm.FnRingbufQuery, asm.FnStrncmp,
}

// readObject reads a compiled program. Its text may come from anyone who can write
// to the ConfigMap.
func readObject(source []byte) (*ebpf.CollectionSpec, error) {
	if len(source) > maxObject {
		return nil, refuse(fmt.Sprintf("the object has %d bytes; a program may have %d", len(source), maxObject))
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(source))
	if err != nil {
		return nil, refuse("it is not a BPF object that can be read: ", err.Error())
	}
	return spec, nil
}

// onlyProgram reduces the object to one program and the maps that it uses.
func onlyProgram(spec *ebpf.CollectionSpec, name string, wanted ebpf.ProgramType) (*ebpf.ProgramSpec, error) {
	chosen, err := chooseProgram(spec, name, wanted)
	if err != nil {
		return nil, err
	}
	for program := range spec.Programs {
		if program != chosen.Name {
			delete(spec.Programs, program)
		}
	}
	used := map[string]bool{}
	for i := range chosen.Instructions {
		if ins := &chosen.Instructions[i]; ins.IsLoadFromMap() {
			used[ins.Reference()] = true
		}
	}
	for name := range spec.Maps {
		if !used[name] {
			delete(spec.Maps, name)
		}
	}
	return chosen, nil
}

func chooseProgram(spec *ebpf.CollectionSpec, name string, wanted ebpf.ProgramType) (*ebpf.ProgramSpec, error) {
	if name == "" {
		if len(spec.Programs) != 1 {
			return nil, refuse("the object holds ", listed(programNames(spec)), ": say which program")
		}
		name = programNames(spec)[0]
	}
	chosen := spec.Programs[name]
	if chosen == nil {
		return nil, refuse("the object has no program ", name, "; it holds ", listed(programNames(spec)))
	}
	if chosen.Type != wanted {
		return nil, refuse("program ", name, " is of type ", chosen.Type.String(), "; this type of program needs ", wanted.String())
	}
	return chosen, nil
}

func programNames(spec *ebpf.CollectionSpec) (names []string) {
	for name := range spec.Programs {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// judgeMaps refuses maps that are more than a program's own. Those of the shared
// names are judged elsewhere.
func judgeMaps(spec *ebpf.CollectionSpec, shared ...string) error {
	memory := uint64(0)
	for name, m := range spec.Maps {
		switch {
		case slices.Contains(shared, name):
			continue
		case slices.Contains(reservedMaps, name):
			return refuse("map ", name, " has the name of one of Braid's maps, which programs cannot reach: choose another")
		case m.Pinning != ebpf.PinNone:
			return refuse("map ", name, " asks to be pinned: the maps of a program are its own")
		case !slices.Contains(privateMaps, m.Type):
			return refuse("map ", name, " is of type ", m.Type.String(), ", which a program may not have")
		}
		memory += mapMemory(m)
	}
	if memory > maxMapMemory {
		return refuse(fmt.Sprintf("its maps have room for %d bytes; a program may have %d", memory, maxMapMemory))
	}
	return nil
}

// mapMemory is about what the map can hold, on all CPUs.
func mapMemory(m *ebpf.MapSpec) uint64 {
	entry := uint64(m.KeySize) + uint64(m.ValueSize)
	switch m.Type {
	case ebpf.RingBuf:
		return uint64(m.MaxEntries)
	case ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUCPUHash:
		entry *= uint64(ebpf.MustPossibleCPU())
	}
	return entry * uint64(m.MaxEntries)
}

// judgeFunctions refuses calls of what is not in the list, and of the kernel's
// functions that are not helpers (kfuncs).
func judgeFunctions(program *ebpf.ProgramSpec, allowed []asm.BuiltinFunc) error {
	for i := range program.Instructions {
		ins := &program.Instructions[i]
		switch {
		case ins.IsKfuncCall():
			return refuse("it calls ", ins.Reference(), ", and programs may call helpers only")
		case ins.IsBuiltinCall() && !slices.Contains(allowed, asm.BuiltinFunc(ins.Constant)):
			return refuse("it calls ", kernelName(asm.BuiltinFunc(ins.Constant)), ", which programs may not")
		}
	}
	return nil
}

// kernelName is what the kernel calls a function: FnSkbLoadBytes is bpf_skb_load_bytes.
func kernelName(function asm.BuiltinFunc) string {
	var name strings.Builder
	name.WriteString("bpf")
	for _, r := range strings.TrimPrefix(function.String(), "Fn") {
		if unicode.IsUpper(r) {
			name.WriteByte('_')
		}
		name.WriteRune(unicode.ToLower(r))
	}
	return name.String()
}

// judgeContext refuses what was not made with BRAID_BLOCK, or with a header that
// knows other structures than this agent.
func judgeContext(spec *ebpf.CollectionSpec) error {
	ours, err := program.LoadTrial()
	if err != nil {
		return fmt.Errorf("reading the trial: %w", err)
	}
	theirs, there := spec.Maps[contextMap]
	switch {
	case !there:
		return refuse("it does not read ", contextMap, ": make programs with BRAID_BLOCK of braid_program.h")
	case theirs.Pinning != ebpf.PinNone:
		return refuse("map ", contextMap, " asks to be pinned")
	case theirs.Value == nil:
		return refuse("it has no type information: compile it with -g")
	}
	if difference := layoutDifference(ours.Maps[contextMap].Value, theirs.Value); difference != "" {
		return refuse("it was compiled with another version of braid_program.h (", difference, " differs): compile it anew")
	}
	return nil
}

// layoutDifference names the first member that two types do not have in common,
// or is empty when they are laid out alike.
func layoutDifference(ours, theirs btf.Type) string {
	ours, theirs = btf.UnderlyingType(ours), btf.UnderlyingType(theirs)
	switch our := ours.(type) {
	case *btf.Struct:
		their, ok := theirs.(*btf.Struct)
		if !ok || our.Size != their.Size || len(our.Members) != len(their.Members) {
			return "struct " + our.Name
		}
		return memberDifference(our.Members, their.Members)
	case *btf.Array:
		their, ok := theirs.(*btf.Array)
		if !ok || our.Nelems != their.Nelems {
			return "an array"
		}
		return layoutDifference(our.Type, their.Type)
	}
	ourSize, ourErr := btf.Sizeof(ours)
	theirSize, theirErr := btf.Sizeof(theirs)
	if ourErr != nil || theirErr != nil || ourSize != theirSize {
		return "a type"
	}
	return ""
}

func memberDifference(ours, theirs []btf.Member) string {
	for i, our := range ours {
		their := theirs[i]
		if our.Name != their.Name || our.Offset != their.Offset || our.BitfieldSize != their.BitfieldSize {
			return our.Name
		}
		if difference := layoutDifference(our.Type, their.Type); difference != "" {
			return our.Name + ", " + difference
		}
	}
	return ""
}
