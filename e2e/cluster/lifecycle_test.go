// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

func TestAgentsAndControllersRunWithWhatTheChartGivesThem(t *testing.T) {
	feature := features.New("installation").
		Assess("every node has an agent that reports", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			out := mustKubectl(ctx, t, "get", "mnode", "--output", `jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`)
			for _, node := range cluster.nodes() {
				if !strings.Contains(out, node+"=True") {
					t.Errorf("%s has no agent that reports: %s", node, out)
				}
			}
			return ctx
		}).
		Assess("the agents write to nothing of the node but its network", agentsDoNotReachTheNode).
		Assess("kubectl braid status waits until everything is fine", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			ctx = applyWorkload(ctx, t, nil)
			if out, err := run(ctx, pluginBin, "status", "--wait"); err != nil || !strings.Contains(out, "Everything is ") {
				t.Errorf("%v\n%s", err, out)
			}
			if out, err := run(ctx, pluginBin, "explain", "client"); err != nil || !strings.Contains(out, "on the node: Programmed") {
				t.Errorf("%v\n%s", err, out)
			}
			expectTrace(ctx, t)
			if err := removal(ctx, "Braid is in use"); err != nil {
				t.Error(err)
			}
			ctx = removeWorkload(ctx, t, nil)
			expectRemovable(ctx, t)
			return ctx
		}).Feature()
	testenv.Test(t, feature)
}

func TestAgentsAndControllersAreReplacedWithoutTheLossOfAConnection(t *testing.T) {
	feature := features.New("rolling restart").
		Setup(applyWorkload).
		Assess("200 connections and a loop of requests go on", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			long := start(func() (string, error) {
				return kubectl(ctx, "exec", "client", "--container", "traffic", "--", "/traffic", "run", serverAddress(ctx, t, "traffic")+":5001", "--connections", "200", "--duration", "40s", "--patience", "60s", "--send-buffer", "65536", "--verify", "--json")
			})
			requests := start(func() (string, error) {
				return kubectl(ctx, "exec", "client", "--container", "tools", "--", "mptcpize", "run", "ab", "-q", "-t", "35", "-n", "1000000", "-c", "4", "http://"+serviceAddress(ctx, t, "web")+"/1k")
			})
			time.Sleep(3 * time.Second)
			for _, what := range []string{"daemonset/braid-agent", "deployment/braid-controller"} {
				mustKubectl(ctx, t, "rollout", "restart", what, "--namespace", systemNamespace)
				mustKubectl(ctx, t, "rollout", "status", what, "--namespace", systemNamespace, "--timeout=120s")
			}
			// Among so many BBR starves some, which raise their 50 kbit/s by a quarter each eight
			// round trips and send what their buffers have for long after the others, also
			// without Braid; all of it must arrive.
			out := regexp.MustCompile(`\[[0-9,.]*\]`).ReplaceAllString(long.wait(t), "[…]")
			if !strings.Contains(out, `"failed":0`) || !strings.Contains(out, `"multipath":true`) {
				t.Errorf("connections were lost: %s", out)
			}
			t.Log(out)
			if out := requests.wait(t); !strings.Contains(out, "Failed requests:        0") {
				t.Errorf("requests failed: %s", out)
			}
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

// background is a command that runs beside a test.
type background struct{ done chan result }

type result struct {
	out string
	err error
}

func start(command func() (string, error)) background {
	b := background{make(chan result, 1)}
	go func() {
		out, err := command()
		b.done <- result{out, err}
	}()
	return b
}

func (b background) wait(t *testing.T) string {
	t.Helper()
	select {
	case r := <-b.done:
		if r.err != nil {
			t.Error(r.err)
		}
		return r.out
	case <-time.After(2 * time.Minute):
		t.Fatal("a command that runs beside the test does not end")
		return ""
	}
}

func mustKubectl(ctx context.Context, t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := kubectl(ctx, arguments...)
	if err != nil {
		t.Log(whatTheClusterDoes(ctx))
		t.Fatal(err)
	}
	return out
}

// whatTheClusterDoes is what explains that something does not come about: nodes, pods, what
// happened last, and what the cluster's processes said, and containers that were started again.
func whatTheClusterDoes(ctx context.Context) string {
	const lastEvents = 30
	said, nodes := "", []string{"get", "nodes,pods", "--all-namespaces", "--output", "wide"}
	for _, ask := range [][]string{nodes, {"events", "--all-namespaces", "--no-headers"}} {
		out, err := kubectl(ctx, ask...)
		lines := strings.SplitAfter(out, "\n")
		said += strings.Join(lines[max(0, len(lines)-lastEvents):], "")
		if err != nil {
			said += err.Error() + "\n"
		}
	}
	return said + lastWordsOfRestarted(ctx) + strings.Join(cluster.lastWords(), "\n")
}

// lastWordsOfRestarted are what containers said before they ended.
func lastWordsOfRestarted(ctx context.Context) (said string) {
	out, err := kubectl(ctx, "get", "pod", "--all-namespaces", "--output", "json")
	var pods corev1.PodList
	if err := errors.Join(err, json.Unmarshal([]byte(out), &pods)); err != nil {
		return err.Error() + "\n"
	}
	for _, pod := range pods.Items {
		for _, container := range pod.Status.ContainerStatuses {
			if container.RestartCount == 0 {
				continue
			}
			words, err := kubectl(ctx, "logs", "--previous", "--tail=20", "--namespace", pod.Namespace, pod.Name, "--container", container.Name)
			said += fmt.Sprintf("%s of %s/%s said before it ended (%v):\n%s\n", container.Name, pod.Namespace, pod.Name, err, words)
		}
	}
	return said
}

func serverAddress(ctx context.Context, t *testing.T, pod string) string {
	t.Helper()
	return mustKubectl(ctx, t, "get", "pod", pod, "--output", "jsonpath={.status.podIP}")
}

func serviceAddress(ctx context.Context, t *testing.T, service string) string {
	t.Helper()
	return mustKubectl(ctx, t, "get", "service", service, "--output", "jsonpath={.spec.clusterIP}")
}

// applyWorkload makes the pods that most tests use, and a policy for them. The pods stay for the next
// test: starting and ending them takes longer than many a test.
func applyWorkload(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	mustKubectl(ctx, t, "apply", "--filename", workload(t))
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod", "--all", "--timeout=60s")
	for i := range paths {
		mustKubectl(ctx, t, "apply", "--filename", writePath(t, i))
	}
	mustKubectl(ctx, t, "apply", "--filename", "e2e/cluster/testdata/policy.yaml")
	mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/spread", "--timeout=60s")
	return ctx
}

func removePolicies(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	mustKubectl(ctx, t, "delete", "mpol,mpath", "--all")
	return ctx
}

// removeWorkload is for tests that have other pods, or look at all that there are.
func removeWorkload(ctx context.Context, t *testing.T, config *envconf.Config) context.Context {
	t.Helper()
	ctx = removePolicies(ctx, t, config)
	mustKubectl(ctx, t, "delete", "--filename", workload(t), "--ignore-not-found", "--grace-period=1")
	return ctx
}

// workload is the manifest with the names that the nodes have here.
func workload(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repository, "e2e/cluster/testdata/workload.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for i, node := range cluster.nodes() {
		text = strings.ReplaceAll(text, fmt.Sprintf("hostname: node%d}", i+1), "hostname: "+node+"}")
	}
	return writeFile(t, text)
}

func writePath(t *testing.T, i int) string {
	t.Helper()
	spec := fmt.Sprintf("interfaces: [%s]", interfaceOf(i))
	if lab.ClusterNetwork(os.Getenv("NETWORK")).Racks() > 0 {
		all := network.Spec{Racks: 2}
		spec += fmt.Sprintf(", underlay: Routed, addressRanges: [%q, %q]", all.PathRange(i, 4), all.PathRange(i, 6))
	}
	return writeFile(t, fmt.Sprintf("apiVersion: braid.dev/v1alpha1\nkind: MPTCPPath\nmetadata: {name: %s}\nspec: {%s}\n", paths[i], spec))
}
