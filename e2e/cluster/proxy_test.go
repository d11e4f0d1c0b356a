// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

// The chart's proxy, with the rights that the chart gives it.
func TestThePlainTCPOfAPodUsesEveryNICByItsNodesProxy(t *testing.T) {
	feature := features.New("the proxy").
		Setup(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "apply", "--filename", manifest(t, "proxy.yaml")) // its policy is the older one
			return ctx
		}).
		Setup(applyWorkload).
		Assess("nobody says that it works before there is one", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed=false", "mpol/legacy", "--timeout=60s")
			return ctx
		}).
		Assess("a download by plain curl fills every NIC", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			setProxy(ctx, t, "true")
			mustKubectl(ctx, t, "--namespace", systemNamespace, "rollout", "status", "daemonset/braid-proxy", "--timeout=120s")
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/legacy", "--timeout=60s")
			before, joins := received(ctx, t), counters(ctx, t, "web-a")["MPJoinAckRx"]
			mustKubectl(ctx, t, "exec", "legacy", "--", "curl", "--silent", "--fail", "--output", "/dev/null",
				"http://"+serverAddress(ctx, t, "web-a")+"/100m")
			shares(t, before, received(ctx, t))
			if counters(ctx, t, "web-a")["MPJoinAckRx"] == joins {
				t.Error("no subflow joined a connection of the server")
			}
			return ctx
		}).
		Assess("a download from a Service's address fills every NIC", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			service := mustKubectl(ctx, t, "get", "service", "web", "--output", "jsonpath={.spec.clusterIP}")
			await(t, "the Service does not answer", func() error { return fetchPlain(ctx, service) })
			before := received(ctx, t)
			mustKubectl(ctx, t, "exec", "legacy", "--", "curl", "--silent", "--fail", "--output", "/dev/null", "http://"+service+"/100m")
			shares(t, before, received(ctx, t))
			return ctx
		}).
		Assess("a server that a policy engine denies is denied, others are not", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			denied, other := serverAddress(ctx, t, "web-a"), serverAddress(ctx, t, "web-b")
			denyLegacy(ctx, t, denied)
			for range 3 {
				if err := fetchPlain(ctx, denied); err == nil {
					t.Error("a denied server answered")
				}
			}
			if err := fetchPlain(ctx, other); err != nil {
				t.Errorf("a server that is not denied: %v", err)
			}
			allowLegacy(ctx, t)
			await(t, "what was denied", func() error { return fetchPlain(ctx, denied) })
			return ctx
		}).
		Assess("a download goes on untouched when the proxy goes", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			setProxy(ctx, t, "false")
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed=false", "mpol/legacy", "--timeout=60s")
			mustKubectl(ctx, t, "exec", "legacy", "--", "curl", "--silent", "--fail", "--output", "/dev/null",
				"http://"+serverAddress(ctx, t, "web-a")+"/10k")
			return ctx
		}).
		Teardown(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "delete", "--filename", manifest(t, "proxy.yaml"), "--grace-period=1")
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

func setProxy(ctx context.Context, t *testing.T, enabled string) {
	t.Helper()
	err := helm(ctx, "upgrade", release, "charts/braid", "--reuse-values", "--force-conflicts",
		"--set", "proxy.enabled="+enabled+",proxy.gracePeriodSeconds=1")
	if err != nil {
		t.Fatal(err)
	}
}

// fetchPlain has the client that speaks no MPTCP ask a server for a file.
func fetchPlain(ctx context.Context, server string) error {
	_, err := kubectl(ctx, "exec", "legacy", "--", "curl", "--silent", "--fail", "--max-time", "8", "--output", "/dev/null", "http://"+server+"/10k")
	return err
}

const legacyDenial = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny-legacy}
spec:
  podSelector: {matchLabels: {app: legacy}}
  policyTypes: [Egress]
  egress: [{to: [{ipBlock: {cidr: 0.0.0.0/0, except: [%s/32]}}]}]
`

// denyLegacy keeps that client from a server: by a NetworkPolicy where the cluster network has
// an engine for these, else as one would.
func denyLegacy(ctx context.Context, t *testing.T, server string) {
	t.Helper()
	if !enforces() {
		deny(ctx, t, cluster.nodes()[0], serverAddress(ctx, t, "legacy"), server)
		return
	}
	enforce(ctx, t, fmt.Sprintf(legacyDenial, server))
	await(t, "the NetworkPolicy has no effect", func() error { return denied(fetchPlain(ctx, server)) })
}

func allowLegacy(ctx context.Context, t *testing.T) {
	t.Helper()
	if !enforces() {
		allow(t, cluster.nodes()[0])
		return
	}
	mustKubectl(ctx, t, "delete", "networkpolicy", "deny-legacy")
}
