// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/bpf/packettest"
)

var collections = map[string]func() (*ebpf.CollectionSpec, error){
	"from_endpoint": endpoint.LoadFromEndpoint,
	"to_endpoint":   endpoint.LoadToEndpoint,
	"at_nic":        endpoint.LoadAtNIC,
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
	asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnKtimeGetNs, asm.FnSkbStoreBytes,
	asm.FnL3CsumReplace, asm.FnL4CsumReplace, asm.FnTailCall, asm.FnCloneRedirect, asm.FnSkbLoadBytes, asm.FnCsumDiff,
	asm.FnSkbChangeTail, asm.FnSkbPullData, asm.FnJiffies64, asm.FnRingbufReserve, asm.FnRingbufSubmit,
	asm.FnKtimeGetCoarseNs,
	asm.FnFibLookup, asm.FnXdpGetBuffLen, asm.FnXdpLoadBytes, // at_nic's; the last two are of 5.18
}

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
			}
		}
	})
}

// Older kernels give up after a million instructions, and follow some ways through
// a program that newer ones know to be the same: there must be room.
const mostVerified = 300_000

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
			t.Logf("%s: %d instructions, %d verified", name, size/asm.InstructionSize, verified)
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
	from, err := endpoint.LoadFromEndpoint()
	require.NoError(t, err)
	to, err := endpoint.LoadToEndpoint()
	require.NoError(t, err)
	if len(from.Maps) != len(to.Maps) {
		t.Errorf("there are %d maps and %d", len(from.Maps), len(to.Maps))
	}
	for name, m := range from.Maps {
		other := to.Maps[name]
		if other == nil {
			t.Errorf("to_endpoint has no map %s", name)
			continue
		}
		if name == ".rodata" {
			continue
		}
		if m.Type != other.Type || m.KeySize != other.KeySize || m.ValueSize != other.ValueSize ||
			m.MaxEntries != other.MaxEntries || m.Flags != other.Flags {
			t.Errorf("the map %s is %v in one program and %v in the other", name, m, other)
		}
	}
}

func TestGoStructsAreThoseOfTheObjects(t *testing.T) {
	spec, err := endpoint.LoadFromEndpoint()
	require.NoError(t, err)
	for name, generated := range map[string]any{
		"attachment": endpoint.FromEndpointAttachment{}, "chain": endpoint.FromEndpointChain{},
		"counters": endpoint.FromEndpointCounters{}, "subflow": endpoint.FromEndpointSubflow{},
		"subflow_key": endpoint.FromEndpointSubflowKey{}, "mptcp_connection": endpoint.FromEndpointMptcpConnection{},
		"mptcp_connection_key": endpoint.FromEndpointMptcpConnectionKey{}, "event": endpoint.FromEndpointEvent{},
		"paths": endpoint.FromEndpointPaths{}, "traffic": endpoint.FromEndpointTraffic{},
	} {
		var c *btf.Struct
		require.NoError(t, spec.Types.TypeByName(name, &c))
		if int(c.Size) != int(reflect.TypeOf(generated).Size()) {
			t.Errorf("struct %s has %d bytes in C and %d in Go", name, c.Size, reflect.TypeOf(generated).Size())
		}
	}
}
