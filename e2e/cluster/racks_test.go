// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/hack/lab"
)

// The first and the third node are in one rack where the cluster network has racks, and the second
// one is in another.
func TestConnectionsToEachNodeUseAllNICs(t *testing.T) {
	feature := features.New("each node").
		Setup(applyWorkload).
		Setup(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "apply", "--filename", thirdServer(t))
			mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod/traffic-third", "--timeout=60s")
			expectWays(ctx, t)
			return ctx
		})
	for i, server := range map[int]string{1: "traffic", 2: "traffic-third"} {
		for _, direction := range []string{"up", "down"} {
			feature = feature.Assess(fmt.Sprintf("%s: %s", server, direction), func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
				expectAllNICs(ctx, t, cluster.nodes()[i], server, direction)
				return ctx
			})
		}
	}
	feature = feature.Assess("without a NIC for a while", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
		goesOnWithoutTo(ctx, t, interfaceOf(1), "traffic-third")
		return ctx
	})
	testenv.Test(t, feature.Teardown(func(ctx context.Context, t *testing.T, config *envconf.Config) context.Context {
		mustKubectl(ctx, t, "delete", "pod/traffic-third", "--grace-period=1")
		return removePolicies(ctx, t, config)
	}).Feature())
}

func thirdServer(t *testing.T) string {
	t.Helper()
	return writeFile(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: traffic-third, labels: {app: traffic-third}}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - {name: traffic, image: %q, imagePullPolicy: Never, args: [serve, --listen, ":5001"]}
`, cluster.nodes()[2], trafficImage))
}

// betweenRacks is how a network with racks leads from one to the other.
var betweenRacks = map[lab.ClusterNetwork]string{lab.CalicoCrossSubnet: " dev vxlan.calico ", lab.CalicoBGP: " via 10.20.1.254 dev " + interfaceOf(0) + " "}

// expectWays shows that a network with racks encapsulates between them, or leads over a
// router, and not within one: else the test would show nothing.
func expectWays(ctx context.Context, t *testing.T) {
	t.Helper()
	between, racks := betweenRacks[lab.ClusterNetwork(os.Getenv("NETWORK"))]
	if !racks {
		return
	}
	for server, way := range map[string]string{"traffic": between, "traffic-third": " dev " + interfaceOf(0) + " "} {
		out := mustOnNode(ctx, t, cluster.nodes()[0], "ip", "route", "get", serverAddress(ctx, t, server))
		if isRouter := strings.Contains(out, betweenRacks[lab.CalicoBGP]); !strings.Contains(out, way) || isRouter != (way == betweenRacks[lab.CalicoBGP]) {
			t.Errorf("to %s leads %s, and not%s", server, out, way)
		}
	}
}

// expectAllNICs has the client exchange bytes with a server, and looks what the sender's NICs say.
func expectAllNICs(ctx context.Context, t *testing.T, node, server, direction string) {
	t.Helper()
	sender := node
	if direction == "up" {
		sender = cluster.nodes()[0]
	}
	address := serverAddress(ctx, t, server)
	await(t, "a connection does not use all NICs", func() error {
		before := counted(ctx, t, sender, "TX:")
		out, err := kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", address+":5001",
			"--duration", "4s", "--direction", direction, "--verify", "--json")
		if err != nil {
			return err
		}
		var result struct {
			Mbit             float64
			Subflows, Failed int
		}
		if err := json.Unmarshal([]byte(out), &result); err != nil {
			t.Fatal(err)
		}
		after := counted(ctx, t, sender, "TX:")
		for i := range paths {
			after[i] -= before[i]
		}
		t.Logf("%.0f Mbit/s by %d subflows; the NICs %v sent %v bytes", result.Mbit, result.Subflows, paths, after)
		for i := range paths {
			if after[i] < 5_000_000 || result.Failed > 0 || result.Mbit < 1.5*linkMbit {
				time.Sleep(time.Second) // probes may not have come over all routers yet
				return fmt.Errorf("%+v, and the NICs %v sent %v bytes", result, paths, after)
			}
		}
		return nil
	})
}
