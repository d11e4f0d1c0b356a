// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/plugin"
)

// preloadDirectory goes with the node, unlike the chart's default.
const preloadDirectory = "/run/braid/preload"

func TestProgramsThatKnowNothingOfMPTCPUseEveryNIC(t *testing.T) {
	feature := features.New("the preload library").
		Setup(applyWorkload).
		Setup(enablePreloading).
		Assess("a download by plain curl from plain nginx fills every NIC", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/spread", "--timeout=60s")
			before, joins := received(ctx, t), counters(ctx, t, "plain-server")["MPJoinAckRx"]
			mustKubectl(ctx, t, "exec", "plain-client", "--", "curl", "--silent", "--fail", "--output", "/dev/null",
				"http://"+serverAddress(ctx, t, "plain-server")+"/100m")
			shares(t, before, received(ctx, t))
			if counters(ctx, t, "plain-server")["MPJoinAckRx"] == joins {
				t.Error("no subflow joined a connection of the server")
			}
			return ctx
		}).
		Assess("status says of which pods the sockets speak MPTCP", assessSockets).
		Teardown(disablePreloading).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

// enablePreloading has the chart's policy put the library into the pods of a labelled
// namespace, and starts some, whose manifests say nothing of it.
func enablePreloading(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	setPreloading(ctx, t, "true")
	mustKubectl(ctx, t, "apply", "--filename", manifest(t, "preload-library.yaml"))
	mustKubectl(ctx, t, "rollout", "status", "daemonset/preload-library", "--timeout=120s")
	mustKubectl(ctx, t, "label", "namespace", "default", "braid.dev/preload=library")
	waitForPreloading(ctx, t)
	mustKubectl(ctx, t, "apply", "--filename", manifest(t, "preload.yaml"))
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod/plain-server", "pod/plain-client", "pod/refuser", "--timeout=60s")
	return ctx
}

// assessSockets downloads again and again, until the agents have looked at what that is.
func assessSockets(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	from := "http://" + serverAddress(ctx, t, "plain-server") + "/100m"
	await(t, "status does not tell the pods apart", func() error {
		var downloads errgroup.Group
		for _, pod := range []string{"plain-client", "refuser"} {
			downloads.Go(func() error {
				_, err := kubectl(ctx, "exec", pod, "--", "curl", "--silent", "--fail", "--limit-rate", "20M", "--output", "/dev/null", from)
				return err
			})
		}
		if err := downloads.Wait(); err != nil {
			t.Fatal(err)
		}
		out, _ := run(ctx, pluginBin, "status", "--output", "json") // not all is spread
		var status plugin.Status
		if err := json.Unmarshal([]byte(out), &status); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		if is := status.Sockets; is == nil || is.MPTCP == 0 || !slices.Equal(is.Plain, []string{"default/refuser"}) {
			return fmt.Errorf("it says %+v", is)
		}
		return nil
	})
	out, _ := run(ctx, pluginBin, "status")
	t.Log(out)
	return ctx
}

func disablePreloading(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	mustKubectl(ctx, t, "delete", "--filename", manifest(t, "preload.yaml"), "--filename", manifest(t, "preload-library.yaml"), "--grace-period=1")
	mustKubectl(ctx, t, "label", "namespace", "default", "braid.dev/preload-")
	setPreloading(ctx, t, "false")
	return ctx
}

func setPreloading(ctx context.Context, t *testing.T, enabled string) {
	t.Helper()
	err := helm(ctx, "upgrade", release, "charts/braid", "--reuse-values", "--force-conflicts",
		"--set", "sockets.preload.enabled="+enabled+",sockets.preload.directory="+preloadDirectory)
	if err != nil {
		t.Fatal(err)
	}
}

// waitForPreloading waits until the API server, which learns of a policy shortly
// after it was made, changes such pods.
func waitForPreloading(ctx context.Context, t *testing.T) {
	t.Helper()
	testutil.Eventually(t, 60*time.Second, "the policy for pods has effect", func() bool {
		out := mustKubectl(ctx, t, "run", "probe", "--image="+workloadImage, "--dry-run=server", "--output=yaml")
		return strings.Contains(out, "LD_PRELOAD")
	})
}
