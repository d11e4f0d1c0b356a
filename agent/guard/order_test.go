// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// programs are the names of those on an interface of the first node, in their order.
func (l *lab) programs(t *testing.T, name string, hook ebpf.AttachType) (names []string) {
	t.Helper()
	index, err := l.Nodes[0].Index(name)
	require.NoError(t, err)
	require.NoError(t, l.Nodes[0].Do(func() error {
		found, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		if err != nil {
			return err
		}
		for _, attached := range found.Programs {
			program, err := ebpf.NewProgramFromID(attached.ID)
			if err != nil {
				return err
			}
			info, err := program.Info()
			if err := errors.Join(err, program.Close()); err != nil {
				return err
			}
			names = append(names, info.Name)
		}
		return nil
	}))
	return names
}

func TestTheGuardKeepsItsPlaceAmongBraidsPrograms(t *testing.T) {
	l := newLab(t, network.Spec{Paths: []string{"blue"}, LinkMbit: 100, PodsPerNode: 1})
	pod := l.Pod("pod-1-1")
	l.guardEverything(t)
	l.datapaths(t)
	opened := chains.Open(chains.Options{PinPath: filepath.Join(l.options.PinPath, "endpoints"), Log: logr.Discard()})
	t.Cleanup(func() { require.NoError(t, l.remove(l.Nodes[0], opened)) })
	require.NoError(t, l.Nodes[0].Do(func() error {
		rule := v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{Name: "r", Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRecord}}}}
		state := l.state
		state.Chains = []v1alpha1.PlanChain{{Name: "chain", Rules: []v1alpha1.PlanRule{rule}}}
		state.Endpoints[0].Chain = "chain"
		return state.Apply(t.Context(), opened, l.builder)
	}))
	if names := l.programs(t, pod.HostInterface, ebpf.AttachTCXIngress); !slices.Equal(names, []string{"from_endpoint", "own_source"}) {
		t.Fatalf("the test shows nothing: the pod's interface has %v", names)
	}
	l.apply(t)
	if names := l.programs(t, pod.HostInterface, ebpf.AttachTCXIngress); !slices.Equal(names, []string{"own_source", "from_endpoint"}) {
		t.Errorf("the pod's interface has %v", names)
	}
	if names := l.programs(t, "blue", ebpf.AttachTCXEgress); !slices.Equal(names, []string{"to_uplink", "meter"}) {
		t.Errorf("the NIC has %v", names)
	}
}
