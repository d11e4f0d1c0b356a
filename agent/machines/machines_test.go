// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"os"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

const inode = 7

// see is why a part that has not looked yet says that a pod in a namespace has failed.
func see(t *testing.T, pod *network.Namespace, change func(*v1alpha1.PlanEndpoint)) error {
	t.Helper()
	_, failed := look(t, pod, change)
	return failed
}

// look also returns what else the pod's status is to say.
func look(t *testing.T, pod *network.Namespace, change func(*v1alpha1.PlanEndpoint)) (message string, failed error) {
	t.Helper()
	planned := &v1alpha1.PlanEndpoint{UID: "pod", Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerKernel}}
	change(planned)
	model := &node.Model{Endpoints: []node.Endpoint{{
		PlanEndpoint: planned, Found: &endpoints.Endpoint{Inode: inode, Path: pod.Path()},
	}}}
	report := New(logr.Discard()).Apply(t.Context(), model)
	require.NoError(t, report.Err)
	var status v1alpha1.EndpointStatus
	if describe := report.Endpoints["pod"].Describe; describe != nil {
		describe(&status)
	}
	return status.Message, report.Endpoints["pod"].Failed
}

func asItIs(*v1alpha1.PlanEndpoint) {}

// addTap makes one that nobody holds open, and returns what opens it.
func addTap(t *testing.T, in *network.Namespace, name string, mode netlink.TuntapMode) *os.File {
	t.Helper()
	tap := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: mode, Queues: 1, Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_ONE_QUEUE}
	require.NoError(t, in.Do(func() error { return netlink.LinkAdd(tap) }))
	_, err := in.Run("ip", "link", "set", name, "up")
	require.NoError(t, err)
	require.Len(t, tap.Fds, 1)
	t.Cleanup(func() { _ = tap.Fds[0].Close() })
	return tap.Fds[0]
}

func newPod(t *testing.T) *network.Namespace {
	t.Helper()
	pod, err := network.New("machines-pod")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pod.Delete()) })
	return pod
}

func TestAPodWithATapInUseIsToldOf(t *testing.T) {
	pod := newPod(t)
	require.NoError(t, see(t, pod, asItIs))
	addTap(t, pod, "tun0", netlink.TUNTAP_MODE_TUN)
	require.NoError(t, see(t, pod, asItIs), "a tunnel of packets is no interface of a machine")
	held := addTap(t, pod, "tap0", netlink.TUNTAP_MODE_TAP)
	require.ErrorContains(t, see(t, pod, asItIs), `annotate the pod braid.dev/virtual-machine: "true"`)
	require.NoError(t, held.Close())
	require.NoError(t, see(t, pod, asItIs), "nobody holds the tap open")
}

func TestAPodIsNotLookedAtWhereItsOwnerSaysWhatItIsOrNothingIsSet(t *testing.T) {
	pod := newPod(t)
	addTap(t, pod, "tap0", netlink.TUNTAP_MODE_TAP)
	for name, tc := range map[string]struct {
		change func(*v1alpha1.PlanEndpoint)
		told   bool
	}{
		"manager Kernel": {asItIs, true},
		"it holds one":   {func(e *v1alpha1.PlanEndpoint) { e.VirtualMachine = &v1alpha1.PlanVirtualMachine{Held: true} }, false},
		"it holds none":  {func(e *v1alpha1.PlanEndpoint) { e.VirtualMachine = &v1alpha1.PlanVirtualMachine{} }, false},
		"manager None":   {func(e *v1alpha1.PlanEndpoint) { e.Subflows.Manager = v1alpha1.SubflowManagerNone }, false},
		"an upgrade of sockets": {func(e *v1alpha1.PlanEndpoint) {
			e.Subflows.Manager, e.UpgradeSockets = v1alpha1.SubflowManagerNone, true
		}, true},
		"transport": {func(e *v1alpha1.PlanEndpoint) {
			e.Subflows.Manager, e.Transport = v1alpha1.SubflowManagerNone, &v1alpha1.Transport{}
		}, true},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tc.told, see(t, pod, tc.change) != nil) })
	}
}

// With passt a VM has no tap, and its connections are the pod's.
func TestAPodThatIsSaidToHoldAVMWithoutATapIsAskedAbout(t *testing.T) {
	pod := newPod(t)
	held := func(e *v1alpha1.PlanEndpoint) {
		e.Subflows.Manager, e.VirtualMachine = v1alpha1.SubflowManagerHost, &v1alpha1.PlanVirtualMachine{Held: true}
	}
	message, failed := look(t, pod, held)
	require.NoError(t, failed, "the machine may just not run yet")
	require.Contains(t, message, `annotate the pod braid.dev/virtual-machine: "false"`)

	addTap(t, pod, "tap0", netlink.TUNTAP_MODE_TAP)
	message, failed = look(t, pod, held)
	require.NoError(t, failed)
	require.Empty(t, message)
}

// A pod may make more interfaces than a look reads: what is behind them is not looked at.
func TestALookAtManyTunnelsIsBounded(t *testing.T) {
	pod := newPod(t)
	require.NoError(t, pod.Do(func() error {
		for range mostReads * 40 {
			if err := netlink.LinkAdd(&netlink.Tuntap{Mode: netlink.TUNTAP_MODE_TUN}); err != nil {
				return err
			}
		}
		return nil
	}))
	addTap(t, pod, "tap0", netlink.TUNTAP_MODE_TAP)
	tap, err := usesTap(pod.Path())
	require.NoError(t, err)
	require.False(t, tap)
}
