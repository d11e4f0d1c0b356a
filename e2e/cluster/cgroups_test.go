// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// The agents know nothing of the pods when the policy comes anew, and no route tells them
// whose interface is whose: what is left is what the kubelets and runtimes made, as the
// agents see it from their containers.
func TestAgentsFindPodsByTheirCgroups(t *testing.T) {
	feature := features.New("identity").
		Setup(applyWorkload).
		Assess("without the node's routes to pods", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "delete", "mpol", "--all")
			await(t, "plans still have endpoints", func() error { return interfacesAre(ctx, "") })
			for _, pod := range strings.Fields(mustKubectl(ctx, t, "get", "pods", "--output", `jsonpath={range .items[*]}{.spec.nodeName}/{.status.podIP} {end}`)) {
				node, address, _ := strings.Cut(pod, "/")
				route := strings.Fields(mustOnNode(ctx, t, node, "ip", "-oneline", "route", "show", address))
				if len(route) == 0 {
					continue // the pods are on a bridge, to which one route leads for all
				}
				mustOnNode(ctx, t, node, "ip", "route", "del", address)
				t.Cleanup(func() { mustOnNode(context.Background(), t, node, append([]string{"ip", "route", "add"}, route...)...) })
			}
			mustKubectl(ctx, t, "apply", "--filename", "e2e/cluster/testdata/policy.yaml")
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/spread", "--timeout=60s")
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

func mustOnNode(ctx context.Context, t *testing.T, node string, command ...string) string {
	t.Helper()
	out, err := cluster.onNode(ctx, node, command...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// interfacesAre expects these of all endpoints that agents report.
func interfacesAre(ctx context.Context, want string) error {
	got, err := kubectl(ctx, "get", "mptcpnodeplans", "--output", "jsonpath={.items[*].status.endpoints[*].hostInterface}")
	if err != nil || got != want {
		return fmt.Errorf("the agents report %q: %w", got, err)
	}
	return nil
}
