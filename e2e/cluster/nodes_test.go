// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"
)

func TestWhatHappensToNodesLosesNothing(t *testing.T) {
	feature := features.New("nodes").
		Setup(startHolding).
		Assess("an agent that is killed begins where it ended", assessHeld(killAgent)).
		Assess("a NIC that is renamed is another one", assessHeld(renameNIC)).
		Assess("a NIC that is pulled comes back", assessHeld(replugNIC)).
		Assess("pods come and go", assessHeld(churn)).
		Assess("a node is drained", assessHeld(drain)).
		Teardown(stopHolding).Feature()
	testenv.Test(t, feature)
}

// assessHeld does something, and looks whether everything is fine afterwards and
// nothing was lost meanwhile.
func assessHeld(do func(context.Context, *testing.T)) features.Func {
	return func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
		do(ctx, t)
		awaitConvergence(ctx, t)
		expectSpread(ctx, t)
		stillHolds(ctx, t, "afterwards")
		return ctx
	}
}

// third is the node of the pod with that name: none of what is held is there.
func third() string { return cluster.nodes()[2] }

// killAgent kills the agent of the client's node as the kernel does when memory is
// short, and waits until kubelet has started it again.
func killAgent(ctx context.Context, t *testing.T) {
	t.Helper()
	node := cluster.nodes()[0]
	const identifier = "jsonpath={.items[0].status.containerStatuses[0].containerID}"
	agent := func(output string) (string, error) {
		return kubectl(ctx, "get", "pods", "--namespace", systemNamespace, "--selector", "app.kubernetes.io/name=braid-agent",
			"--field-selector", "spec.nodeName="+node, "--output", output)
	}
	before, err := agent(identifier)
	if err == nil {
		err = cluster.killContainer(ctx, node, strings.TrimPrefix(before, "containerd://"))
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the agent is not started again", func() error {
		now, err := agent(identifier)
		if err == nil && (now == "" || now == before) {
			err = errors.New("it is the same container")
		}
		return err
	})
}

// renameNIC gives a NIC another name, by which the path knows it only later.
func renameNIC(ctx context.Context, t *testing.T) {
	t.Helper()
	last := len(paths) - 1
	rename(ctx, t, interfaceOf(last), "renamed")
	awaitPaths(ctx, t, paths[:last])
	mustKubectl(ctx, t, "patch", "mpath", paths[last], "--type=merge", "--patch", fmt.Sprintf(`{"spec": {"interfaces": [%q, "renamed"]}}`, interfaceOf(last)))
	awaitPaths(ctx, t, paths)
	expectSpread(ctx, t)
	rename(ctx, t, "renamed", interfaceOf(last))
	awaitPaths(ctx, t, paths)
}

func rename(ctx context.Context, t *testing.T, from, to string) {
	t.Helper()
	for _, line := range []string{"ip link set dev " + from + " down", "ip link set dev " + from + " name " + to, "ip link set dev " + to + " up"} {
		if _, err := cluster.onNode(ctx, third(), strings.Fields(line)...); err != nil {
			t.Fatal(err)
		}
	}
}

// awaitPaths waits until the third node's agent says that these paths are up there,
// and no others.
func awaitPaths(ctx context.Context, t *testing.T, wanted []string) {
	t.Helper()
	await(t, "the paths of the third node", func() error {
		out, err := kubectl(ctx, "get", "mnode", third(), "--output", "jsonpath={range .status.paths[?(@.state==\"Up\")]}{.name} {end}")
		found := strings.Fields(out)
		slices.Sort(found)
		if err == nil && !slices.Equal(found, wanted) {
			err = fmt.Errorf("up are %v instead of %v", found, wanted)
		}
		return err
	})
}

// replugNIC pulls a NIC that the cluster network's routes do not use.
func replugNIC(ctx context.Context, t *testing.T) {
	t.Helper()
	last := len(paths) - 1
	if err := cluster.unplug(ctx, third(), last); err != nil {
		t.Fatal(err)
	}
	awaitPaths(ctx, t, paths[:last])
	if err := cluster.plug(ctx, third(), last); err != nil {
		t.Fatal(err)
	}
	awaitPaths(ctx, t, paths)
}

// churn makes and deletes pods on the client's node.
func churn(ctx context.Context, t *testing.T) {
	t.Helper()
	var pods []string
	for i := range 10 {
		pods = append(pods, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: churn-%d, labels: {app: churn}}\nspec:\n"+
			"  nodeSelector: {kubernetes.io/hostname: %s}\n  containers:\n"+
			"  - {name: traffic, image: %q, imagePullPolicy: Never, args: [wait]}\n", i, cluster.nodes()[0], trafficImage))
	}
	manifest := writeFile(t, strings.Join(pods, "---\n"))
	mustKubectl(ctx, t, "apply", "--filename", manifest)
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod", "--selector=app=churn", "--timeout=2m")
	mustKubectl(ctx, t, "delete", "pod", "--selector=app=churn", "--grace-period=1")
	await(t, "plans have pods that are gone", func() error {
		out, err := kubectl(ctx, "get", "mplan", cluster.nodes()[0], "--output", "jsonpath={.spec.endpoints[*].name} {.status.endpoints[*].name}")
		if err == nil && strings.Contains(out, "churn") {
			err = errors.New(out)
		}
		return err
	})
}

// drain moves everything off the third node, and lets it come back.
func drain(ctx context.Context, t *testing.T) {
	t.Helper()
	mustKubectl(ctx, t, "drain", third(), "--ignore-daemonsets", "--force", "--delete-emptydir-data", "--grace-period=1", "--timeout=2m")
	await(t, "the plan of a drained node has pods", func() error {
		out, err := kubectl(ctx, "get", "mplan", third(), "--ignore-not-found", "--output", "jsonpath={.spec.endpoints[*].name}")
		if err == nil && out != "" {
			err = errors.New(out)
		}
		return err
	})
	mustKubectl(ctx, t, "uncordon", third())
	mustKubectl(ctx, t, "apply", "--filename", manifest(t, "lifecycle.yaml"))
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod/third", "--timeout=2m")
}
