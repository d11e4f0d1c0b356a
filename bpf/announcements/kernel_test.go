// SPDX-License-Identifier: Apache-2.0

package announcements_test

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/announcements"
)

// The helpers that the program may call, all of them in Linux 6.1.
var helpers = []asm.BuiltinFunc{
	asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnKtimeGetNs, asm.FnSkbStoreBytes, asm.FnCloneRedirect,
	asm.FnSkbLoadBytes, asm.FnCsumDiff, asm.FnL4CsumReplace, asm.FnSkbChangeTail, asm.FnSkFullsock, asm.FnTcpSock, asm.FnSkStorageGet, asm.FnSkbPullData,
	asm.FnSkcToTcpSock, asm.FnProbeReadKernel, asm.FnRingbufReserve, asm.FnRingbufSubmit,
}

func TestTheProgramNeedsNothingThatIsNewerThanLinux61(t *testing.T) {
	spec, err := announcements.LoadHold()
	require.NoError(t, err)
	for name, program := range spec.Programs {
		for _, instruction := range program.Instructions {
			if instruction.IsBuiltinCall() && !slices.Contains(helpers, asm.BuiltinFunc(instruction.Constant)) {
				t.Errorf("%s calls the helper %v", name, asm.BuiltinFunc(instruction.Constant))
			}
			if instruction.IsKfuncCall() {
				t.Errorf("%s calls a kernel function: %v", name, instruction)
			}
		}
	}
}

const mostVerified = 100_000

func TestTheVerifierHasLittleWork(t *testing.T) {
	spec, err := announcements.LoadHold()
	require.NoError(t, err)
	collection, err := ebpf.NewCollection(spec)
	require.NoError(t, err)
	defer collection.Close()
	for name, program := range collection.Programs {
		info, err := program.Info()
		require.NoError(t, err)
		verified, ok := info.VerifiedInstructions()
		t.Logf("%s: the verifier looked at %d instructions", name, verified)
		if !ok || verified == 0 || verified > mostVerified {
			t.Errorf("%s: the verifier looked at %d instructions", name, verified)
		}
	}
}
