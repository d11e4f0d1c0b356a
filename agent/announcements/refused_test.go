// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pins"
	"braid.dev/braid/api/v1alpha1"
)

// On such a kernel addresses are announced at once; that is no failure of each round.
func TestAKernelThatRefusesTheProgramIsToldOnce(t *testing.T) {
	tries := 0
	h := Open(Options{PinPath: t.TempDir(), Log: logr.Discard()})
	h.loaded = pins.NewLoaded(pins.New(filepath.Join(t.TempDir(), "announcements"), schema, logr.Discard()), func() (*objects, error) {
		tries++
		return nil, &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"invalid zero-sized read"}}
	})
	require.Nil(t, h.Feature(), "nobody has asked")
	model := &node.Model{Endpoints: []node.Endpoint{{HostInterface: 1, PlanEndpoint: &v1alpha1.PlanEndpoint{
		UID: "pod", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerKernel, Count: 3, AnnounceAfterMillis: 500},
	}}}}
	for range 3 {
		report := h.Apply(t.Context(), model)
		require.True(t, report.Done())
	}
	require.Equal(t, 1, tries)
	feature := h.Feature()
	require.Equal(t, "HoldAnnouncements", feature.Name)
	require.False(t, feature.Supported)
	require.Contains(t, feature.Message, "invalid zero-sized read")
}
