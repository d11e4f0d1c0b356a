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

	"braid.dev/braid/internal/testutil"
)

// agentToken is one as the kubelet mounts it into the agent's pod of a node.
func agentToken(ctx context.Context, t *testing.T, node string) string {
	t.Helper()
	pod := mustKubectl(ctx, t, "get", "pods", "--namespace", systemNamespace, "--selector", "app.kubernetes.io/name=braid-agent",
		"--field-selector", "spec.nodeName="+node, "--output", "jsonpath={.items[0].metadata.name}")
	token := mustKubectl(ctx, t, "create", "token", "braid-agent", "--namespace", systemNamespace, "--bound-object-kind", "Pod", "--bound-object-name", pod)
	return strings.TrimSpace(token)
}

// as runs kubectl with a token and nothing else.
func as(ctx context.Context, token string, arguments ...string) (string, error) {
	server, err := kubectl(ctx, "config", "view", "--minify", "--output", "jsonpath={.clusters[0].cluster.server}")
	if err != nil {
		return "", err
	}
	return kubectl(ctx, append([]string{"--kubeconfig", "/dev/null", "--insecure-skip-tls-verify", "--server", server, "--token", token}, arguments...)...)
}

func TestAgentsRunAsTheAgentsOfTheirNodes(t *testing.T) {
	const agents = systemNamespace + "-agents"
	nodes := cluster.nodes()
	account := func(node string) string { return "braid-agent-" + node }
	feature := features.New("identities").
		Assess("agents report, though their pods' account may do nothing but get their node's tokens", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "wait", "--for=condition=Ready", "mnode", "--all", "--timeout=60s")
			token := agentToken(ctx, t, nodes[0])
			for _, refused := range [][]string{
				{"get", "mplan"}, {"get", "mplan", nodes[0]}, {"get", "node", nodes[0]}, {"get", "mnode"}, {"get", "leases,configmaps", "--namespace", systemNamespace},
				{"create", "token", account(nodes[1]), "--namespace", agents, "--duration", "1h"},
				{"create", "token", "braid-controller", "--namespace", systemNamespace, "--duration", "1h"},
				{"create", "token", account(nodes[0]), "--namespace", agents, "--duration", "2h"},
			} {
				if out, err := as(ctx, token, refused...); err == nil || !strings.Contains(err.Error(), "orbidden") {
					t.Errorf("kubectl %v with the token of an agent's pod: %v, %.200s", refused, err, out)
				}
			}
			own, err := as(ctx, token, "create", "token", account(nodes[0]), "--namespace", agents, "--duration", "1h")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := as(ctx, strings.TrimSpace(own), "get", "mplan", nodes[0]); err != nil {
				t.Error(err)
			}
			if out, err := as(ctx, strings.TrimSpace(own), "get", "mplan", nodes[1]); err == nil {
				t.Errorf("the agent of %s reads the plan of %s: %.200s", nodes[0], nodes[1], out)
			}
			return ctx
		}).
		Assess("their accounts and roles go with the installation", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			expectRemovable(ctx, t)
			if err := helm(ctx, "uninstall", release, "--wait"); err != nil {
				t.Fatal(err)
			}
			testutil.Retry(t, time.Minute, func() error {
				left, err := kubectl(ctx, "get", "clusterroles,clusterrolebindings,roles,rolebindings,serviceaccounts", "--all-namespaces", "--output", "name")
				if err == nil && strings.Contains(left, "braid-agent") {
					err = fmt.Errorf("left of Braid: %s", left)
				}
				return err
			})
			return ctx
		}).
		Teardown(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			if err := install(ctx); err != nil {
				t.Error(err)
			}
			return ctx
		}).Feature()
	testenv.Test(t, feature)
}
