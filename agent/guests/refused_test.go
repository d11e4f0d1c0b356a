// SPDX-License-Identifier: Apache-2.0

package guests

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

func TestAVMIsNotProgrammedWhereTheKernelRefusesThePrograms(t *testing.T) {
	p := Open(Options{PinPath: t.TempDir(), Log: logr.Discard()})
	p.loaded = pins.NewLoaded(pins.New(filepath.Join(t.TempDir(), "guests"), schema, logr.Discard()), func() (*objects, error) {
		return nil, &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"combined stack size of 4 calls is 576"}}
	})
	model := &node.Model{Endpoints: []node.Endpoint{{HostInterface: 1, PlanEndpoint: &v1alpha1.PlanEndpoint{
		UID: "vm", Guest: &v1alpha1.PlanGuest{}, Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerHost, Count: 3},
	}}}}
	for range 2 {
		report := p.Apply(t.Context(), model)
		require.NoError(t, report.Err, "it is told of the VM, and not tried again")
		require.ErrorContains(t, report.Endpoints["vm"].Failed, "combined stack size")
	}
	require.False(t, p.hasChanged())
}
