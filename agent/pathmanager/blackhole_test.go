// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/pair"
)

// Where the network dropped the first SYNs of a pod, as before its NetworkPolicies are there,
// the kernel would give MPTCP up for an hour.
func TestAPodTriesMPTCPAgainAfterAMinute(t *testing.T) {
	const setting = "net.mptcp.blackhole_timeout"
	for before, wanted := range map[string]string{"3600": "60", "61": "60", "60": "60", "10": "10", "0": "0"} {
		t.Run(before, func(t *testing.T) {
			t.Parallel()
			client, _ := pair.New(t)
			read := func() string {
				value, err := client.Run("sysctl", "-n", setting)
				require.NoError(t, err)
				return strings.TrimSpace(value)
			}
			if _, err := client.Run("sysctl", "-w", setting+"="+before); err != nil {
				t.Skipf("this kernel never gives MPTCP up (before Linux 6.12): %v", err)
			}
			statePath := t.TempDir()
			first := open(t, client, statePath)
			require.NoError(t, first.Configure(context.Background(), settings(client, kernel, 3)))
			require.Equal(t, wanted, read())
			require.NoError(t, first.Close())
			second := open(t, client, statePath)
			defer second.Close()
			require.NoError(t, second.Configure(context.Background(), settings(client, agent, 3)))
			require.Equal(t, wanted, read())
			require.NoError(t, second.Restore(context.Background()))
			require.Equal(t, before, read())
		})
	}
}
