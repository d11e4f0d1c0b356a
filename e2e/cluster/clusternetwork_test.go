// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"sigs.k8s.io/e2e-framework/pkg/envconf"
	"sigs.k8s.io/e2e-framework/pkg/features"

	"braid.dev/braid/internal/lab/network"
)

// onCilium is whether Cilium makes the cluster's network.
func onCilium() bool { return strings.HasPrefix(os.Getenv("NETWORK"), "cilium") }

// Whatever brings pods' packets to the NICs and back: what a pod may send holds there.
func TestGuardrailsHoldOnTheClusterNetwork(t *testing.T) {
	feature := features.New("guardrails").
		Setup(applyWorkload).
		Assess("a pod sends no more than its ceiling, over all NICs", assessCeiling).
		Assess("Braid's programs come before those of others at every NIC", assessOrder).
		Teardown(func(ctx context.Context, t *testing.T, config *envconf.Config) context.Context {
			mustKubectl(ctx, t, "delete", "mguard", "--all")
			return removePolicies(ctx, t, config)
		}).Feature()
	testenv.Test(t, feature)
}

func applyGuardrail(ctx context.Context, t *testing.T, spec string) {
	t.Helper()
	mustKubectl(ctx, t, "apply", "--filename", writeFile(t, "apiVersion: braid.dev/v1alpha1\nkind: MPTCPGuardrail\nmetadata: {name: tenants}\nspec: {namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: Exists}]}, podSelector: {}, "+spec+"}\n"))
	mustKubectl(ctx, t, "wait", "--for=condition=Programmed", "mguard/tenants", "--timeout=60s")
}

func assessCeiling(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	free := sendFor(ctx, t, "4s")
	applyGuardrail(ctx, t, "maxPodRate: 40M")
	bound := sendFor(ctx, t, "6s")
	t.Logf("%.0f Mbit/s by %d subflows without a ceiling, %.1f with one of 40", free.Mbit, free.Subflows, bound.Mbit)
	if free.Subflows != len(paths) || free.Mbit < 1.5*linkMbit || bound.Mbit > 42 || bound.Mbit < 20 {
		t.Errorf("%.0f Mbit/s by %d subflows without a ceiling, %.1f with one of 40", free.Mbit, free.Subflows, bound.Mbit)
	}
	return ctx
}

type sending struct {
	Mbit     float64 `json:"mbit"`
	Subflows int     `json:"subflows"`
}

// sendFor has the client send to the server of another node.
func sendFor(ctx context.Context, t *testing.T, duration string) (result sending) {
	t.Helper()
	out := mustKubectl(ctx, t, "exec", "client", "--container", "traffic", "--",
		"/traffic", "run", serverAddress(ctx, t, "traffic")+":5001", "--direction", "up", "--duration", duration, "--json")
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return result
}

// assessOrder looks while the guard's programs are there too.
func assessOrder(ctx context.Context, t *testing.T, _ *envconf.Config) context.Context {
	lab, ours := cluster.(*labProvider)
	if !ours {
		return ctx // the nodes are not this machine's
	}
	for _, node := range lab.lab.Network.Nodes {
		for _, path := range paths {
			expectFirst(t, node, path, ebpf.AttachTCXEgress, "to_uplink", "meter")
			expectFirst(t, node, path, ebpf.AttachTCXIngress, "from_uplink")
		}
	}
	return ctx
}

func expectFirst(t *testing.T, node *network.Node, nic string, hook ebpf.AttachType, wanted ...string) {
	t.Helper()
	names, err := programsAt(node, nic, hook)
	if err != nil || len(names) < len(wanted) || !slices.Equal(names[:len(wanted)], wanted) {
		t.Errorf("%s of %s has %v in the place of %v first: %v", nic, node.NodeName(), names, wanted, err)
	}
	others := slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "cil_") })
	if onCilium() && hook == ebpf.AttachTCXIngress && !others {
		t.Errorf("%s of %s has no program of Cilium's: %v", nic, node.NodeName(), names)
	}
}

// programsAt are the names of those on a node's interface, in their order.
func programsAt(node *network.Node, nic string, hook ebpf.AttachType) (names []string, err error) {
	index, err := node.Index(nic)
	if err != nil {
		return nil, err
	}
	err = node.Do(func() error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return fmt.Errorf("asking for the programs of %s: %w", nic, err)
		}
		for _, attached := range found.Programs {
			program, err := ebpf.NewProgramFromID(attached.ID)
			if err != nil {
				return fmt.Errorf("opening a program of %s: %w", nic, err)
			}
			info, err := program.Info()
			if err := errors.Join(err, program.Close()); err != nil {
				return err
			}
			names = append(names, info.Name)
		}
		return nil
	})
	return names, err
}
