// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/proxy"
)

const mostVerified = 100_000

func TestTheVerifierHasLittleWork(t *testing.T) {
	for _, load := range []func() (*ebpf.CollectionSpec, error){proxy.LoadFromClient, proxy.LoadToClient, proxy.LoadFromRelay, proxy.LoadListen} {
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
