// SPDX-License-Identifier: Apache-2.0

package machines_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// machineSuite is the release of Debian whose kernel the machine boots.
const machineSuite = "trixie"

// migrationLasts is how long connections last during which the machine moves. Other nodes ask
// their routes to it again after 17 s at most, where nothing is lost that would have them do so
// before.
const migrationLasts = 30 * time.Second

// A virtual machine with the kernel of Debian moves to another node by QEMU's own live
// migration, while it sends on a connection of its own, whose subflows its host makes, and on
// one that a pod began. Both go on: the machine's own with its first subflow, the pod's with all, which use
// all NICs of the new node. So do the machine's next ones.
func TestConnectionsOfAMachineGoOnWhenQEMUMovesItToAnotherNode(t *testing.T) {
	c := use(t)
	m, guest := c.bootMachine(t)
	own := c.orderTransfer(t, m, migrationLasts)
	others := c.Begin(t, testlab.NewTransfer("tenant-server", "vm", 4, traffic.Down, migrationLasts))
	c.WaitFor(t, "the pod's connection has its subflows", 10*time.Second, func(context.Context) error {
		if count := len(others.Subflows(t)); count != len(paths) {
			return fmt.Errorf("it has %d", count)
		}
		return nil
	})
	c.expectGuestSubflows(t, guest, v1alpha1.ReasonGuestJoins)

	patience := testutil.NewPatience()
	moved := c.migrate(t, m, guest)
	t.Logf("copied within %v, stood still for %v", moved.Stopped.Sub(moved.Began), moved.Still)
	leaving := c.Record(m.Node)
	others.Finish(t)
	mine := own(t)
	leaving.Stop()
	require.NoError(t, leaving.Err)
	require.Equal(t, len(paths), others.Result.Subflows, "of the pod's connection, in the end")
	stop := others.LongestStop(moved.Began.Sub(others.Began), migrationLasts)
	t.Logf("the pod's connection had nothing to read for %v, the server of the machine's own for %.0f ms; that one ended with %d subflows",
		stop, mine.LongestGapMs, mine.Subflows)
	if own := time.Duration(mine.LongestGapMs * float64(time.Millisecond)); max(own, stop) > patience.Stretch(testlab.LongestStop) {
		t.Errorf("a connection stood still for %v, of %v at most", max(own, stop), patience.Stretch(testlab.LongestStop))
	}
	end := others.Began.Add(migrationLasts)
	expectAllNICs(t, "the node that it moved to", leaving.Rates(end.Add(-6*time.Second), end))

	c.expectEndpoint(t, guest, v1alpha1.ReasonAccepted, v1alpha1.ReasonProgrammed)
	leaving = c.Record(m.Node)
	began := time.Now()
	again := c.orderTransfer(t, m, testlab.SpreadTime)(t)
	leaving.Stop()
	require.NoError(t, leaving.Err)
	require.Equal(t, len(paths), again.Subflows, "of a connection that began after it moved")
	expectAllNICs(t, "it by a connection that began there", leaving.Rates(began, time.Now()))
}

// bootMachine boots a machine on the first node, selected with manager: Host, and a server in
// it. The node of the tenant's pod opens the subflows of what that begins.
func (c *cluster) bootMachine(t *testing.T) (*lab.Machine, *v1alpha1.MPTCPEndpoint) {
	t.Helper()
	require.NoError(t, lab.FetchMachines(t.Context(), machineSuite))
	began := time.Now()
	m, err := c.Boot(t.Context(), lab.MachineSpec{Name: "vm", Node: 1, Suite: machineSuite, Serves: true, MemoryMiB: 128})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.RemoveMachine(m)) })
	t.Logf("Linux %s was up after %v", m.Kernel, time.Since(began))
	guest := endpointOf(m.Pod, "vm", m.IPv4)
	guest.Labels["app"] = "vm"
	policy, servers := testlab.NewPolicy("tenant", "vm"), testlab.NewPolicy("tenant", "server")
	policy.Spec.Subflows.Manager, servers.Spec.Subflows.Manager = v1alpha1.SubflowManagerHost, v1alpha1.SubflowManagerAgent
	servers.Name = "servers"
	c.CreatePaths(t)
	c.Create(t, policy, servers, guest)
	c.WaitProgrammed(t, policy, 1)
	c.WaitProgrammed(t, servers, 1)
	c.warmUp(t, m)
	return m, guest
}

// warmUp has the machine send and answer once before it is measured: an emulated processor needs
// half a second for a handshake that it has not translated yet, and the kernels may give MPTCP up
// over that.
func (c *cluster) warmUp(t *testing.T, m *lab.Machine) {
	t.Helper()
	const short = time.Second
	_, err := m.Traffic(t.Context(), "run", net.JoinHostPort(c.Network.Pod("tenant-server").IPv4, strconv.Itoa(lab.TrafficPort)),
		"--duration", short.String(), "--warmup", "0s")
	require.NoError(t, err)
	r := c.Begin(t, testlab.NewTransfer("tenant-server", "vm", 4, traffic.Down, short))
	<-r.Done
	require.NoError(t, r.Err)
}

// migrate moves the machine to the third node, and tells the API server.
func (c *cluster) migrate(t *testing.T, m *lab.Machine, guest *v1alpha1.MPTCPEndpoint) lab.Migration {
	t.Helper()
	moved, err := c.Migrate(t.Context(), m, c.Network.Nodes[2], func() error {
		c.Update(t, guest, func() {
			guest.Spec.NodeName, guest.Spec.Interface.Name = m.Node.NodeName(), m.HostInterface
		})
		return nil
	})
	require.NoError(t, err)
	return moved
}

// orderTransfer has the machine send to the tenant's server; what it returns waits for the
// end. The connection must have delivered every byte.
func (c *cluster) orderTransfer(t *testing.T, m *lab.Machine, lasts time.Duration) func(*testing.T) *traffic.Result {
	t.Helper()
	type outcome struct {
		said string
		err  error
	}
	ended := make(chan outcome, 1)
	go func() {
		address := net.JoinHostPort(c.Network.Pod("tenant-server").IPv4, strconv.Itoa(lab.TrafficPort))
		said, err := m.Traffic(t.Context(), "run", address, "--duration", lasts.String(), "--verify", "--json")
		ended <- outcome{said, err}
	}()
	return func(t *testing.T) *traffic.Result {
		t.Helper()
		is := <-ended
		require.NoError(t, is.err)
		var result traffic.Result
		require.NoError(t, json.Unmarshal([]byte(is.said), &result))
		require.Zero(t, result.Failed, "%v", result.Errors)
		require.True(t, result.Multipath)
		return &result
	}
}

// expectAllNICs: each carries its part of what leaves.
func expectAllNICs(t *testing.T, node string, wire testlab.Rates) {
	t.Helper()
	t.Logf("what leaves %s: %v", node, wire)
	for _, path := range paths {
		if share := wire[path] / wire.Of(paths); share < 0.15 {
			t.Errorf("%s carries %.0f %% of what leaves %s", path, 100*share, node)
		}
	}
}
