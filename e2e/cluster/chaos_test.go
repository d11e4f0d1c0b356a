// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/internal/testutil"
)

// chaosVariable says how long agents are deleted, such as 5m; a minute else.
const chaosVariable = "BRAID_E2E_CHAOS"

func chaosDuration(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv(chaosVariable)
	if text == "" {
		return time.Minute
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s: %v", chaosVariable, err)
	}
	return duration
}

// deleteAgents deletes one agent's pod after another, at random, until the context
// ends, and returns how many there were. While the API server is away nothing can be
// deleted.
func deleteAgents(ctx context.Context) (deleted int) {
	for ctx.Err() == nil {
		out, err := kubectl(ctx, "get", "pods", "--namespace", systemNamespace, "--selector", "app.kubernetes.io/name=braid-agent", "--output", "name")
		if pods := strings.Fields(out); err == nil && len(pods) > 0 {
			_, err = kubectl(ctx, "delete", "--namespace", systemNamespace, "--wait=false", pods[rand.IntN(len(pods))])
			if err == nil {
				deleted++
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(1+rand.IntN(4)) * time.Second):
		}
	}
	return deleted
}

// disturb kills the API server twice and reboots the third node between, spread over
// the time, while agents are deleted.
func disturb(ctx context.Context, t *testing.T, duration time.Duration) {
	t.Helper()
	began := time.Now()
	deleting, stop := context.WithDeadline(ctx, began.Add(duration))
	defer stop()
	deleted := make(chan int, 1)
	go func() { deleted <- deleteAgents(deleting) }()
	for i, act := range []func(context.Context) error{
		func(ctx context.Context) error { return cluster.killServer(ctx, 3*time.Second) },
		func(ctx context.Context) error { return cluster.reboot(ctx, cluster.nodes()[2]) },
		func(ctx context.Context) error { return cluster.killServer(ctx, 3*time.Second) },
	} {
		time.Sleep(time.Until(began.Add(duration * time.Duration(i+1) / 4)))
		if err := act(ctx); err != nil {
			t.Fatal(err)
		}
	}
	count := <-deleted
	t.Logf("in %.0f s: %d agents deleted, the API server killed twice, a node rebooted", time.Since(began).Seconds(), count)
	if count < 3 {
		t.Errorf("only %d agents were deleted", count)
	}
}

func TestChaosLosesNothingOnOtherNodesAndPasses(t *testing.T) {
	var before string
	feature := features.New("chaos").
		Setup(startHolding).
		Assess("what is not on the rebooted node goes on", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			before = started(ctx, t, "third")
			disturb(ctx, t, chaosDuration(t))
			return ctx
		}).
		Assess("everything is as it was soon after", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			began := time.Now()
			await(t, "the pod of the rebooted node does not run again", func() error {
				now, err := kubectl(ctx, "get", "pod", "third", "--output", containerStart)
				if err != nil || now == "" || now == before {
					return fmt.Errorf("it runs since %q, and did since %q: %w", now, before, err)
				}
				return nil
			})
			awaitConvergence(ctx, t)
			expectSpread(ctx, t)
			took := time.Since(began)
			now := stillHolds(ctx, t, "after it all")
			testutil.Figure(t, "chaos.lost", "", float64(now.lost()))
			testutil.Figure(t, "chaos.converged_s", "s", took.Seconds())
			t.Logf("%d exchanges, the longest of %.0f ms, %d requests", now.Exchanges, now.LongestMs, now.Requests)
			return ctx
		}).
		Teardown(stopHolding).Feature()
	testenv.Test(t, feature)
}

const containerStart = "jsonpath={.status.containerStatuses[0].state.running.startedAt}"

// started is since when a pod's container runs.
func started(ctx context.Context, t *testing.T, pod string) string {
	t.Helper()
	return mustKubectl(ctx, t, "get", "pod", pod, "--output", containerStart)
}
