// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
	labtraffic "braid.dev/braid/internal/lab/traffic"
)

const (
	// machineSuite is the release of Debian whose kernel virtual machines boot.
	machineSuite = "trixie"
	// preferredShare is what a preferred path carries at least, and strayShare what one carries
	// at most that no subflow may use.
	preferredShare, strayShare = 0.8, 0.03
)

const machineGuardrail = `apiVersion: braid.dev/v1alpha1
kind: MPTCPGuardrail
metadata: {name: machines}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: default}}
  podSelector: {matchLabels: {app: vm}}
  paths: [blue, green]
`

// Two pods whose containers run QEMU behind a tap, joined to their pods as KubeVirt joins its
// machines, with the label that KubeVirt gives. The machines have the kernel of Debian; their
// tenant's part is the limits of MPTCP.
func TestMachinesInPodsGetTheirSubflowsFromTheirNode(t *testing.T) {
	feature := features.New("machines in pods").
		Setup(removeWorkload).
		Setup(bootMachines).
		Assess("what would be set in the pod is told as not applied", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed=false", "mpol/machines", "--timeout=60s")
			await(t, "the policy does not say why", func() error {
				is, err := kubectl(ctx, "get", "mpol/machines", "--output", `jsonpath={.status.conditions[?(@.type=="Programmed")]}`)
				if err == nil && (!strings.Contains(is, v1alpha1.ReasonNotForGuests) || !strings.Contains(is, "manager: Host")) {
					err = fmt.Errorf("it says %s", is)
				}
				return err
			})
			explained, err := run(ctx, pluginBin, "explain", "vm")
			if err != nil || !strings.Contains(explained, "holds a VM: ") {
				t.Errorf("explain does not say that the pod holds a VM: %v\n%s", err, explained)
			}
			return ctx
		}).
		Assess("with manager: Host every NIC carries its part of one connection", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "patch", "mpol/machines", "--type=merge", "--patch", `{"spec":{"subflows":{"manager":"Host"}}}`)
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mpol/machines", "--timeout=60s")
			for _, machine := range []string{"vm", "vm-bridge"} {
				t.Run(machine, func(t *testing.T) { spreadOverAll(ctx, t, machine) })
			}
			return ctx
		}).
		Assess("a hint of the tenant's is followed", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "annotate", "pod/vm", v1alpha1.AnnotationPreferredPaths+"=green")
			awaitMachine(ctx, t, "vm", "the hint is not followed", `{.hints[*].state}`, string(v1alpha1.HintFollowed))
			if carried := sharesOfMachine(ctx, t, "vm", "5s"); carried[1] < preferredShare {
				t.Errorf("the preferred path carried %.2f, of %v", carried[1], carried)
			}
			mustKubectl(ctx, t, "annotate", "pod/vm", v1alpha1.AnnotationPreferredPaths+"-")
			return ctx
		}).
		Assess("a guardrail keeps it from a path", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "apply", "--filename", writeFile(t, machineGuardrail))
			await(t, "the guardrail does not hold", func() error {
				count, err := kubectl(ctx, "get", "mguard/machines", "--output", "jsonpath={.status.podsProgrammed}")
				if err == nil && count != "2" {
					err = fmt.Errorf("it holds for %q pods", count)
				}
				return err
			})
			if carried := sharesOfMachine(ctx, t, "vm", "5s"); carried[2] > strayShare || carried[0] < 0.15 || carried[1] < 0.15 {
				t.Errorf("it may use the first two paths, and they carried %v", carried)
			}
			return ctx
		}).
		Feature()
	testenv.Test(t, feature)
}

// bootMachines makes paths, and a policy whose manager is one for pods.
func bootMachines(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	t.Helper()
	t.Cleanup(func() { // where one does not come up, too: the next test waits for all pods
		mustKubectl(ctx, t, "delete", "mguard,mpol,mpath", "--all")
		mustKubectl(ctx, t, "delete", "--filename", manifest(t, "machines.yaml", "MANAGER", "Agent"), "--ignore-not-found", "--grace-period=1")
	})
	for i := range paths {
		mustKubectl(ctx, t, "apply", "--filename", writePath(t, i))
	}
	mustKubectl(ctx, t, "apply", "--filename", manifest(t, "machines.yaml", "MANAGER", "Agent"))
	mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod/machine-server", "pod/vm", "pod/vm-bridge", "--timeout=4m")
	for _, machine := range []string{"vm", "vm-bridge"} {
		orderMachine(ctx, t, machine, "1s") // an emulated processor is slow at what it does first
	}
	return ctx
}

// spreadOverAll: one connection of the machine's has a subflow on each NIC, and each carries its
// part; its node knows that the guest follows it.
func spreadOverAll(ctx context.Context, t *testing.T, machine string) {
	before := sent(ctx, t)
	result := orderMachine(ctx, t, machine, "6s")
	shares(t, before, sent(ctx, t))
	if !result.Multipath || result.Subflows != len(paths) {
		t.Errorf("it had %d subflows (MPTCP: %v)", result.Subflows, result.Multipath)
	}
	awaitMachine(ctx, t, machine, "its node does not say that the guest joins", "{.guestSubflows}", string(v1alpha1.GuestJoined))
}

// The agent, with the rights and the mount that the chart gives it, connects to what listens in a
// pod where KubeVirt's have their libvirt. Here that is nginx, which speaks another protocol.
func TestTheAgentReachesTheLibvirtOfAPod(t *testing.T) {
	const policy = "cmpol/launchers"
	says := func(ctx context.Context, t *testing.T, what, want string) {
		awaitMachine(ctx, t, "launcher", what, "{.guestAgent.message}", want)
	}
	feature := features.New("the libvirt of a pod").
		Setup(applyWorkload).
		Setup(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "apply", "--filename", manifest(t, "launcher.yaml"))
			mustKubectl(ctx, t, "wait", "--for=condition=Ready", "pod/launcher", "--timeout=60s")
			return ctx
		}).
		Assess("the status says what the chart lacks", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "wait", "--for=condition=Programmed", policy, "--timeout=60s")
			says(ctx, t, "it does not name the value", "this node's agent knows no directory of pods, below which KubeVirt's have libvirt's socket: set agent.podsDirectory in the chart")
			return ctx
		}).
		Assess("the agent reaches what listens in the pod's volume", func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			setPodsDirectory(ctx, t, lab.PodsOfKubelet)
			says(ctx, t, "nothing was reached", "what answers at libvirt's socket does not speak its protocol")
			status, err := run(ctx, pluginBin, "status")
			if err != nil || !strings.Contains(status, v1alpha1.ReasonGuestAgentUnreachable) {
				t.Errorf("the plugin does not say so: %v\n%s", err, status)
			}
			return ctx
		}).
		Teardown(func(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
			mustKubectl(ctx, t, "delete", "--filename", manifest(t, "launcher.yaml"), "--grace-period=1")
			setPodsDirectory(ctx, t, "")
			return ctx
		}).
		Teardown(removePolicies).Feature()
	testenv.Test(t, feature)
}

// setPodsDirectory has the agents look for libvirts below a directory, and waits for them.
func setPodsDirectory(ctx context.Context, t *testing.T, directory string) {
	t.Helper()
	if err := helm(ctx, "upgrade", release, "charts/braid", "--reuse-values", "--force-conflicts", "--set", "agent.podsDirectory="+directory); err != nil {
		t.Fatal(err)
	}
	mustKubectl(ctx, t, "--namespace", systemNamespace, "rollout", "status", "daemonset/braid-agent", "--timeout=120s")
}

// awaitMachine waits until the first node says this of a machine's pod.
func awaitMachine(ctx context.Context, t *testing.T, machine, what, field, want string) {
	t.Helper()
	path := strings.Replace(field, "{", fmt.Sprintf(`{.status.endpoints[?(@.name==%q)]`, machine), 1)
	await(t, what, func() error {
		is, err := kubectl(ctx, "get", "mplan/"+cluster.nodes()[0], "--output", "jsonpath="+path)
		if err == nil && is != want {
			err = fmt.Errorf("%s is %q", field, is)
		}
		return err
	})
}

// sharesOfMachine are those of the paths in what the machine's node sends meanwhile.
func sharesOfMachine(ctx context.Context, t *testing.T, machine, lasts string) []float64 {
	t.Helper()
	before := sent(ctx, t)
	orderMachine(ctx, t, machine, lasts)
	after := sent(ctx, t)
	total, carried := int64(0), make([]float64, len(after))
	for i := range after {
		total += after[i] - before[i]
	}
	for i := range after {
		carried[i] = float64(after[i]-before[i]) / float64(total)
	}
	return carried
}

// orderMachine has the machine send on one connection, which must deliver every byte.
func orderMachine(ctx context.Context, t *testing.T, machine, lasts string) labtraffic.Result {
	t.Helper()
	out := mustKubectl(ctx, t, "exec", machine, "--", "/machine", "order", "--",
		"run", serverAddress(ctx, t, "machine-server")+":5001", "--duration", lasts, "--warmup", "0s", "--verify", "--json")
	var result labtraffic.Result
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d subflows, %.0f Mbit/s, MPTCP: %v", machine, result.Subflows, result.Mbit, result.Multipath)
	if result.Failed > 0 {
		t.Fatalf("the connection of %s broke: %v", machine, result.Errors)
	}
	return result
}
