// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
)

// On such a kernel the endpoints with rules say so, and nothing else of the node fails.
func TestAKernelThatRefusesTheProgramsFailsEndpointsWithRulesAlone(t *testing.T) {
	tries := 0
	c := Open(Options{PinPath: t.TempDir(), Log: logr.Discard()})
	c.loaded = pins.NewLoaded(pins.New(filepath.Join(t.TempDir(), "endpoints"), schema, logr.Discard()), func() (*half, error) {
		tries++
		return nil, &ebpf.VerifierError{Cause: unix.E2BIG, Log: []string{"BPF program is too large"}}
	})
	require.Nil(t, c.Feature(), "nobody has asked")
	endpoint := node.Endpoint{HostInterface: 1, Number: 1, Found: &endpoints.Endpoint{}, PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "pod", Chain: "rules"}}
	plan := &v1alpha1.MPTCPNodePlan{Spec: v1alpha1.MPTCPNodePlanSpec{Chains: []v1alpha1.PlanChain{{Name: "rules", Rules: make([]v1alpha1.PlanRule, 1)}}}}
	for range 3 {
		report := c.Apply(t.Context(), &node.Model{Plan: plan, Endpoints: []node.Endpoint{endpoint}})
		require.NoError(t, report.Err)
		require.ErrorIs(t, report.Endpoints["pod"].Failed, pins.ErrRefused)
	}
	require.Equal(t, 1, tries)
	require.False(t, c.Feature().Supported)
	require.Contains(t, c.Feature().Message, "too large")
	report := c.Apply(t.Context(), &node.Model{Plan: plan})
	require.NoError(t, report.Err)
}
