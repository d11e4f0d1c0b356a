// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// expectTrace has a join replayed through the programs of the client's node.
func expectTrace(ctx context.Context, t *testing.T) {
	t.Helper()
	out, err := run(ctx, pluginBin, "trace", "--pod", "client", "--to", serverAddress(ctx, t, "traffic")+":5001",
		"--type", "MPJoin", "--token", "0x1a2b3c4d", "--system-namespace", systemNamespace)
	outcome := "leaves by path "
	if overlaid() {
		outcome = "enters the overlay by "
	}
	if err != nil || !strings.Contains(out, outcome) || strings.Contains(out, " cni0 ") {
		t.Errorf("tracing a join: %v\n%s", err, out)
	}
}

// overlaid is whether the cluster network encapsulates what pods send to other nodes.
func overlaid() bool { return slices.Contains([]string{"flannel", "calico"}, os.Getenv("NETWORK")) }

// removal is what is said of a removal.
func removal(ctx context.Context, says string) error {
	out, err := run(ctx, pluginBin, "uninstall", "--check", "--system-namespace", systemNamespace)
	if !strings.Contains(out, says) {
		return fmt.Errorf("kubectl braid uninstall --check does not say %q: %w\n%s", says, err, out)
	}
	return nil
}

// expectRemovable waits until the agents have undone what they did for the workload,
// which is gone.
func expectRemovable(ctx context.Context, t *testing.T) {
	t.Helper()
	await(t, "Braid cannot be removed", func() error { return removal(ctx, "can be removed without harm") })
}
