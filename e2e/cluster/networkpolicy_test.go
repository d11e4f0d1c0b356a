// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// deny has a node do what a policy engine would for a NetworkPolicy that keeps the
// client from a server: drop its packets at the hook where such engines work. Cilium is
// one, and denies by the policy alone.
func deny(ctx context.Context, t *testing.T, node, from, to string) {
	t.Helper()
	if onCilium() {
		t.Cleanup(func() { allow(t, node) })
		pod := mustKubectl(ctx, t, "get", "pod", "--field-selector=status.podIP="+to, "--output=jsonpath={.items[0].metadata.name}")
		mustKubectl(ctx, t, "apply", "--filename", writeFile(t, fmt.Sprintf(networkPolicy, pod)))
		time.Sleep(2 * time.Second) // nothing says when the policy holds
		return
	}
	rules := fmt.Sprintf("add table inet deny; add chain inet deny forward { type filter hook forward priority 0; }; "+
		"add rule inet deny forward ip saddr %s ip daddr %s counter drop", from, to)
	if _, err := cluster.onNode(ctx, node, "nft", rules); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { allow(t, node) })
}

// networkPolicy keeps the client from a pod, by a label that this has from the beginning:
// Cilium takes a new label into account seconds later, and blocks of addresses never for
// those of pods.
const networkPolicy = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny}
spec:
  podSelector: {matchLabels: {app: client}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchExpressions: [{key: pod, operator: NotIn, values: [%s]}]}}]}]
`

func allow(t *testing.T, node string) {
	t.Helper()
	if onCilium() {
		mustKubectl(context.Background(), t, "delete", "networkpolicy", "deny", "--ignore-not-found")
		return
	}
	if _, err := cluster.onNode(context.Background(), node, "nft", "add table inet deny; delete table inet deny"); err != nil {
		t.Error(err)
	}
}

// fetch has the client ask a server for a file.
func fetch(ctx context.Context, pod string) error {
	_, err := kubectl(ctx, "exec", "client", "--container", "tools", "--", "mptcpize", "run",
		"curl", "--silent", "--fail", "--max-time", "4", "--output", "/dev/null", "http://"+pod+"/10k")
	return err
}

func TestADestinationThatIsDeniedIsDeniedOnEveryPath(t *testing.T) {
	feature := features.New("network policy").
		Setup(applyWorkload).
		Assess("new connections do not get through, others do", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			client, denied, other := serverAddress(ctx, t, "client"), serverAddress(ctx, t, "web-a"), serverAddress(ctx, t, "web-b")
			if err := fetch(ctx, denied); err != nil {
				t.Errorf("before anything is denied: %v", err)
			}
			deny(ctx, t, cluster.nodes()[0], client, denied)
			for range 3 {
				if err := fetch(ctx, denied); err == nil {
					t.Error("a denied server answered")
				}
			}
			if err := fetch(ctx, other); err != nil {
				t.Errorf("a server that is not denied: %v", err)
			}
			allow(t, cluster.nodes()[0])
			return ctx
		}).
		Assess("a transfer over all paths stops on all of them", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			server := serverAddress(ctx, t, "traffic")
			transfer := start(func() (string, error) {
				return kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", server+":5001", "--duration", "12s", "--json")
			})
			time.Sleep(3 * time.Second)
			deny(ctx, t, cluster.nodes()[0], serverAddress(ctx, t, "client"), server)
			time.Sleep(time.Second)
			before := sent(ctx, t)
			time.Sleep(3 * time.Second)
			for i, after := range sent(ctx, t) {
				if bytes := after - before[i]; bytes > 200_000 {
					t.Errorf("path %s still carried %d bytes", paths[i], bytes)
				}
			}
			allow(t, cluster.nodes()[0])
			if out := transfer.wait(t); !strings.Contains(out, `"subflows":3`) {
				t.Errorf("the transfer did not use three subflows: %.400s", out)
			}
			return ctx
		}).
		Teardown(removeWorkload).Feature()
	testenv.Test(t, feature)
}
