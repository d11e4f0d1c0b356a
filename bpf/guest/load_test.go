// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/guest"
)

const mostVerified = 100_000

func TestTheVerifierHasLittleWork(t *testing.T) {
	for _, load := range []func() (*ebpf.CollectionSpec, error){guest.LoadFromGuest, guest.LoadToGuest, guest.LoadAskPeers} {
		spec, err := load()
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
}
