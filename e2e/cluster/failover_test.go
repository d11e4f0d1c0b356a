// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/hack/lab"
)

// The first NIC is that of the cluster network's own routes or tunnels. Where an agent of that
// network takes care of these, they come back with the NIC. Natively routed pods have no other way
// between racks meanwhile.
func TestAConnectionGoesOnWhenANICIsSetDown(t *testing.T) {
	feature := features.New("failover").Setup(applyWorkload)
	nics := []string{interfaceOf(1)}
	if clusterNetwork := os.Getenv("NETWORK"); clusterNetwork != "" && lab.ClusterNetwork(clusterNetwork) != lab.CalicoBGP {
		nics = append(nics, interfaceOf(0))
	}
	for _, nic := range nics {
		feature = feature.Assess(nic, func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			goesOnWithout(ctx, t, nic)
			return ctx
		})
	}
	testenv.Test(t, feature.Teardown(removePolicies).Feature())
}

func goesOnWithout(ctx context.Context, t *testing.T, nic string) {
	t.Helper()
	goesOnWithoutTo(ctx, t, nic, "traffic")
}

func goesOnWithoutTo(ctx context.Context, t *testing.T, nic, to string) {
	t.Helper()
	server, node := serverAddress(ctx, t, to), cluster.nodes()[0]
	routes := routesByHand(ctx, t, node)
	transfer := start(func() (string, error) {
		return kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", server+":5001", "--duration", "12s", "--verify", "--json")
	})
	time.Sleep(3 * time.Second)
	mustOnNode(ctx, t, node, "ip", "link", "set", "dev", nic, "down")
	time.Sleep(5 * time.Second)
	mustOnNode(ctx, t, node, "ip", "link", "set", "dev", nic, "up")
	// Routes given by hand do not come back by themselves.
	for _, route := range routes {
		mustOnNode(ctx, t, node, append([]string{"ip", "route", "replace"}, strings.Fields(route)...)...)
	}
	var result struct {
		Mbit, LongestGapMs float64
		Subflows, Failed   int
	}
	if err := json.Unmarshal([]byte(transfer.wait(t)), &result); err != nil {
		t.Fatal(err)
	}
	t.Logf("without %s for five of twelve seconds: %+v", nic, result)
	if result.Failed > 0 || result.LongestGapMs > 3000 || result.Mbit < 1.2*linkMbit {
		t.Errorf("the transfer did not go on: %+v", result)
	}
	await(t, "new connections are not spread again", func() error { return usesAll(ctx, t, server) })
}

// routesByHand are the default route and those to the other racks: of all others somebody takes
// care.
func routesByHand(ctx context.Context, t *testing.T, node string) (routes []string) {
	t.Helper()
	for line := range strings.Lines(mustOnNode(ctx, t, node, "ip", "route", "show")) {
		if strings.HasPrefix(line, "default") || !strings.Contains(line, " proto ") && strings.Contains(line, " via ") && strings.Contains(line, "/16 ") {
			routes = append(routes, strings.TrimSpace(line))
		}
	}
	return routes
}
