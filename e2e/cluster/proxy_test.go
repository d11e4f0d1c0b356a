// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
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
		Assess("a download goes on untouched when the proxy goes", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			setProxy(ctx, t, "false")
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed=false", "mpol/legacy", "--timeout=60s")
			mustKubectl(ctx, t, "exec", "legacy", "--", "curl", "--silent", "--fail", "--output", "/dev/null",
				"http://"+serverAddress(ctx, t, "web-a")+"/10k")
			return ctx
		}).
		Teardown(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "delete", "--filename", manifest(t, "proxy.yaml"))
			return ctx
		}).
		Teardown(removeWorkload).Feature()
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
