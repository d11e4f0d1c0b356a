// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
)

var collections = map[string]func() (*ebpf.CollectionSpec, error){
	"to_uplink":   uplink.LoadToUplink,
	"from_uplink": uplink.LoadFromUplink,
	"to_tunnel":   uplink.LoadToTunnel,
}

func forEachCollection(t *testing.T, f func(t *testing.T, spec *ebpf.CollectionSpec)) {
	for name, load := range collections {
		t.Run(name, func(t *testing.T) {
			spec, err := load()
			require.NoError(t, err)
			f(t, spec)
		})
	}
}

// The helpers that the programs may call, all of them in Linux 6.1. Add one only
// after a look at when the kernel got it.
var helpers = []asm.BuiltinFunc{
	asm.FnMapLookupElem,
	asm.FnMapUpdateElem,
	asm.FnMapDeleteElem,
	asm.FnSkbLoadBytes,
	asm.FnSkbLoadBytesRelative,
	asm.FnSkbStoreBytes, // Linux 4.1
	asm.FnCsumDiff,      // Linux 4.6
	asm.FnCsumUpdate,    // Linux 4.9
	asm.FnL4CsumReplace, // Linux 4.1
	asm.FnSkbPullData,
	asm.FnSkbAdjustRoom, // Linux 4.13, what is put before IP 5.2
	asm.FnFibLookup,
	asm.FnRedirectNeigh,
	asm.FnKtimeGetCoarseNs,
	asm.FnKtimeGetNs,    // Linux 4.1
	asm.FnJiffies64,     // Linux 5.6
	asm.FnGetHashRecalc, // Linux 4.8
}

var mapTypes = []ebpf.MapType{ebpf.Array, ebpf.Hash, ebpf.LRUHash, ebpf.LPMTrie, ebpf.PerCPUArray}

const (
	mapNoPrealloc    = 1    // BPF_F_NO_PREALLOC, Linux 4.6
	mapReadOnly      = 0x80 // BPF_F_RDONLY_PROG, Linux 5.2
	mapMemoryMapable = 1024 // BPF_F_MMAPABLE, Linux 5.5
)

func TestProgramsNeedNothingThatIsNewerThanLinux61(t *testing.T) {
	forEachCollection(t, func(t *testing.T, spec *ebpf.CollectionSpec) {
		for _, program := range spec.Programs {
			for _, instruction := range program.Instructions {
				if instruction.IsBuiltinCall() && !slices.Contains(helpers, asm.BuiltinFunc(instruction.Constant)) {
					t.Errorf("%s calls the helper %v", program.Name, asm.BuiltinFunc(instruction.Constant))
				}
				if instruction.IsKfuncCall() {
					t.Errorf("%s calls a kernel function: %v", program.Name, instruction)
				}
				if isOfVersion4(instruction.OpCode) {
					t.Errorf("%s has an instruction of -mcpu=v4: %v", program.Name, instruction)
				}
			}
		}
		for _, m := range spec.Maps {
			if !slices.Contains(mapTypes, m.Type) {
				t.Errorf("the map %s has the type %v", m.Name, m.Type)
			}
			if m.Flags&^(mapNoPrealloc|mapReadOnly|mapMemoryMapable) != 0 {
				t.Errorf("the map %s has the flags %#x", m.Name, m.Flags)
			}
		}
	})
}

// isOfVersion4 tells the instructions that came with Linux 6.6: signed loads,
// signed division, byte swaps of registers, and jumps with 32-bit offsets.
func isOfVersion4(code asm.OpCode) bool {
	switch code.Class() {
	case asm.LdXClass:
		return code.Mode() == asm.MemSXMode
	case asm.ALU64Class:
		return code.ALUOp() == asm.Swap
	case asm.Jump32Class:
		return code.JumpOp() == asm.Ja
	}
	return false
}

// Older kernels give up after a million instructions, and follow some ways
// through a program that newer ones know to be the same: there must be room.
const mostVerified = 100_000

func TestTheVerifierHasLittleWork(t *testing.T) {
	forEachCollection(t, func(t *testing.T, spec *ebpf.CollectionSpec) {
		collection, err := ebpf.NewCollection(spec)
		require.NoError(t, err)
		defer collection.Close()
		for name, program := range collection.Programs {
			info, err := program.Info()
			require.NoError(t, err)
			verified, ok := info.VerifiedInstructions()
			size, sizeErr := info.TranslatedSize()
			require.NoError(t, sizeErr)
			jited, _ := info.JitedSize()
			t.Logf("%s: %d instructions, %d verified, %d bytes of machine code", name, size/asm.InstructionSize, verified, jited)
			if !ok || verified == 0 || verified > mostVerified {
				t.Errorf("%s: the verifier looked at %d instructions", name, verified)
			}
		}
	})
}

func TestTheStackIsEnoughForLinux61(t *testing.T) {
	forEachCollection(t, func(t *testing.T, spec *ebpf.CollectionSpec) {
		require.NoError(t, packettest.CheckStackForLinux61(spec))
	})
}

func TestBothProgramsHaveTheSameMaps(t *testing.T) {
	to, err := uplink.LoadToUplink()
	require.NoError(t, err)
	from, err := uplink.LoadFromUplink()
	require.NoError(t, err)
	for name, m := range from.Maps {
		if name == ".rodata" {
			continue
		}
		other := to.Maps[name]
		if other == nil {
			t.Errorf("to_uplink has no map %s", name)
			continue
		}
		if m.Type != other.Type || m.KeySize != other.KeySize || m.ValueSize != other.ValueSize ||
			m.MaxEntries != other.MaxEntries || m.Flags != other.Flags {
			t.Errorf("the map %s is %v in one program and %v in the other", name, m, other)
		}
	}
}

// The generated Go structs, by the names of the C ones.
var structs = map[string][2]any{
	"address":        {uplink.ToUplinkAddress{}, uplink.FromUplinkAddress{}},
	"connection":     {uplink.ToUplinkConnection{}, uplink.FromUplinkConnection{}},
	"connection_key": {uplink.ToUplinkConnectionKey{}, uplink.FromUplinkConnectionKey{}},
	"filter":         {uplink.ToUplinkFilter{}, uplink.FromUplinkFilter{}},
	"flow":           {uplink.ToUplinkFlow{}, uplink.FromUplinkFlow{}},
	"flow_key":       {uplink.ToUplinkFlowKey{}, uplink.FromUplinkFlowKey{}},
	"node":           {uplink.ToUplinkNode{}, uplink.FromUplinkNode{}},
	"endpoint":       {uplink.ToUplinkEndpoint{}, nil},
	"peer":           {uplink.ToUplinkPeer{}, nil},
	"health":         {uplink.ToUplinkHealth{}, nil},
	"preference":     {uplink.ToUplinkPreference{}, nil},
	"traffic":        {uplink.ToUplinkTraffic{}, uplink.FromUplinkTraffic{}},
}

func TestGoStructsAreThoseOfTheObjects(t *testing.T) {
	for i, load := range []func() (*ebpf.CollectionSpec, error){uplink.LoadToUplink, uplink.LoadFromUplink} {
		spec, err := load()
		require.NoError(t, err)
		for name, generated := range structs {
			if generated[i] == nil {
				continue
			}
			var c *btf.Struct
			require.NoError(t, spec.Types.TypeByName(name, &c))
			compareStruct(t, c, reflect.TypeOf(generated[i]))
		}
	}
}

func compareStruct(t *testing.T, c *btf.Struct, g reflect.Type) {
	t.Helper()
	if int(c.Size) != int(g.Size()) {
		t.Errorf("struct %s has %d bytes in C and %d in Go", c.Name, c.Size, g.Size())
	}
	fields := make([]reflect.StructField, 0, len(c.Members))
	for i := range g.NumField() {
		if field := g.Field(i); field.IsExported() {
			fields = append(fields, field)
		}
	}
	if len(fields) != len(c.Members) {
		t.Errorf("struct %s has %d members in C and %d in Go", c.Name, len(c.Members), len(fields))
		return
	}
	for i, member := range c.Members {
		size, err := btf.Sizeof(member.Type)
		require.NoError(t, err)
		if int(member.Offset.Bytes()) != int(fields[i].Offset) || size != int(fields[i].Type.Size()) {
			t.Errorf("%s.%s is %d bytes at %d in C, %d bytes at %d in Go", c.Name, member.Name,
				size, member.Offset.Bytes(), fields[i].Type.Size(), fields[i].Offset)
		}
	}
}

func TestTheKernelsMapsHoldTheGoStructs(t *testing.T) {
	n := newNode(t)
	expected := map[*ebpf.Map][2]any{
		n.maps.Connections:   {uplink.ToUplinkConnectionKey{}, uplink.ToUplinkConnection{}},
		n.maps.Endpoints:     {uplink.ToUplinkAddress{}, uplink.ToUplinkEndpoint{}},
		n.maps.Flows:         {uplink.ToUplinkFlowKey{}, uplink.ToUplinkFlow{}},
		n.maps.Health:        {uint32(0), uplink.ToUplinkHealth{}},
		n.maps.LocalFilter:   {uint32(0), uplink.ToUplinkFilter{}},
		n.maps.Node:          {uint32(0), uplink.ToUplinkNode{}},
		n.maps.PeerAddresses: {uplink.ToUplinkAddress{}, uint32(0)},
		n.maps.Peers:         {uint32(0), uplink.ToUplinkPeer{}},
		n.maps.Preferences:   {uint32(0), uplink.ToUplinkPreference{}},
		n.maps.Traffic:       {uint32(0), uplink.ToUplinkTraffic{}},
	}
	for m, types := range expected {
		if key := reflect.TypeOf(types[0]).Size(); int(m.KeySize()) != int(key) {
			t.Errorf("%s: keys of %d bytes, in Go %d", m, m.KeySize(), key)
		}
		if value := reflect.TypeOf(types[1]).Size(); int(m.ValueSize()) != int(value) {
			t.Errorf("%s: values of %d bytes, in Go %d", m, m.ValueSize(), value)
		}
	}
}

// kernel.h keeps a copy of the kernel's ABI.
func TestTheCopiedABIIsTheKernels(t *testing.T) {
	kernel, err := btf.LoadKernelSpec()
	require.NoError(t, err)
	program, err := uplink.LoadToUplink()
	require.NoError(t, err)
	var copied, original *btf.Struct
	require.NoError(t, program.Types.TypeByName("__sk_buff", &copied))
	require.NoError(t, kernel.TypeByName("__sk_buff", &original))
	offsets := map[string]btf.Bits{}
	for _, member := range original.Members {
		offsets[member.Name] = member.Offset
		if union, ok := member.Type.(*btf.Union); ok && member.Name == "" {
			for _, inner := range union.Members {
				offsets[inner.Name] = member.Offset + inner.Offset
			}
		}
	}
	for _, member := range copied.Members {
		if offset, ok := offsets[member.Name]; !ok || offset != member.Offset {
			t.Errorf("__sk_buff.%s is at %d in the copy and at %d (%t) in the kernel", member.Name, member.Offset, offset, ok)
		}
	}
}

func TestTheEmptyProgramDoesNothing(t *testing.T) {
	n := newNode(t)
	empty, err := packettest.NewEmpty()
	require.NoError(t, err)
	defer empty.Close()
	frame := endsOf[4].syn(capable(1)).frame()
	if v := n.run(t, empty, frame, skBuff{Ifindex: n.nics[blue]}); v != next {
		t.Errorf("the verdict is %v", v)
	}
}
