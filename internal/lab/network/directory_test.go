// SPDX-License-Identifier: Apache-2.0

package network_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
)

// ownRun is set where /run is the test's own, without anything in it.
const ownRun = "BRAID_TEST_OWN_RUN"

// The first `ip netns add` of a machine mounts the directory of the namespaces over itself:
// what others have there would be mounted twice, and could not be removed any more.
func TestANamespaceCanBeRemovedWhenIPMadeItsFirstOneMeanwhile(t *testing.T) {
	if os.Getenv(ownRun) == "" {
		inner := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c",
			`mount -t tmpfs none /run && mkdir /run/netns && exec "$0" -test.v -test.run="^$1$"`, os.Args[0], t.Name())
		inner.Env = append(os.Environ(), ownRun+"=1")
		out, err := inner.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return
	}
	namespace, err := network.New("before")
	require.NoError(t, err)
	out, err := exec.Command("ip", "netns", "add", "others").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, namespace.Delete())
	out, err = exec.Command("ip", "netns", "delete", "others").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
