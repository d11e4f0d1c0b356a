// SPDX-License-Identifier: Apache-2.0

package testlab

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAnotherLabsMountIsNotTakenForThisOnes(t *testing.T) {
	for mounts, is := range map[string]bool{
		"bpf /run/braid-lab/e2e/bpf bpf rw 0 0":         true,
		"tmpfs /run/braid-lab/e2e tmpfs rw 0 0":         true,
		"bpf /run/braid-lab/e2efailures/bpf bpf rw 0 0": false,
		"": false,
	} {
		require.Equal(t, is, isMounted(mounts, "/run/braid-lab/e2e"), mounts)
	}
}
