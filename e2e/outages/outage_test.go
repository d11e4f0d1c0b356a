// SPDX-License-Identifier: Apache-2.0

package outages_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/traffic"
)

// What happens when, in a transfer during which the API server cannot be reached:
// first the nodes are cut off from it, so that every request hangs; then it is
// stopped, and every request fails, until the controller has given up. Nothing
// depends on how long that is, so a third of a minute stands for any time.
const (
	cutOffAt   = 1500 * time.Millisecond
	failedAt   = 6 * time.Second
	repairedAt = 9500 * time.Millisecond
	stoppedAt  = 12 * time.Second
	serverAt   = 24 * time.Second
	outageEnd  = 26 * time.Second
)

func TestTheAPIServerCannotBeReached(t *testing.T) {
	c := use(t)
	c.awaitControlPlane(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.Spread(t, policy, 2)
	c.WaitFor(t, "its paths are ready", 10*time.Second, c.PathsReady)
	node := c.Network.Pod("client").Node
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, outageEnd))
	r.SleepUntil(cutOffAt)
	before := c.Flows(t, node)
	connect := c.cutOff(t)
	c.ExpectUsed(t, paths...)
	returned := c.failWithoutServer(t, r)

	r.SleepUntil(stoppedAt)
	c.StopServer(t)
	connect()
	r.SleepUntil(serverAt)
	expectSamePaths(t, before, c.Flows(t, node))
	c.StartServer(t)
	r.Finish(t)
	expectSteadyWithoutServer(t, r, returned)
	c.expectRecovery(t, policy)
}

// awaitControlPlane waits until the controller follows what the API server says: where a test
// before has stopped the server, it hears of policies and of paths again at different times,
// each after up to client-go's longest pause between two attempts to watch, or has lost its
// lease and ends.
func (c *cluster) awaitControlPlane(t *testing.T) {
	t.Helper()
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	c.CreatePaths(t)
	c.Create(t, policy)
	took := c.WaitFor(t, "the controller follows", time.Minute, func(ctx context.Context) error {
		c.KeepController(t)
		return errors.Join(c.Programmed(ctx, policy, 2), c.PathsReady(ctx))
	})
	t.Logf("the controller follows what the API server says after %v", took)
	c.DeleteAll(t)
	c.WaitFor(t, "nothing is left of that", 10*time.Second, c.NothingLeft)
}

// failWithoutServer sets a NIC down and up again, and returns when it came back.
func (c *cluster) failWithoutServer(t *testing.T, r *testlab.Running) time.Time {
	t.Helper()
	nic := shop.IsSetDown("green", "client")
	r.SleepUntil(failedAt)
	c.Set(t, nic, false)
	r.SleepUntil(repairedAt)
	return c.Set(t, nic, true)
}

func expectSteadyWithoutServer(t *testing.T, r *testlab.Running, returned time.Time) {
	t.Helper()
	meanwhile, without, after := r.Shares(cutOffAt, failedAt), r.Shares(failedAt+shop.Settled, repairedAt), r.Shares(stoppedAt, serverAt)
	took, _ := r.Wire.CarriesAgain("green", returned)
	t.Logf("nothing arrived for %v at most, for %v when a NIC failed, for %v when it came back, which took %v",
		r.LongestStop(cutOffAt, failedAt), r.LongestStop(failedAt, repairedAt), r.LongestStop(repairedAt, stoppedAt), took)
	t.Logf("without API server %v; without green too %v; with green again %v", meanwhile, without, after)
	if used := meanwhile.Used(); !slices.Equal(used, paths) {
		t.Errorf("without API server only %v carried a share", used)
	}
	if used := without.Used(); !slices.Equal(used, []string{"blue", "red"}) {
		t.Errorf("while green was down %v carried a share", used)
	}
	if used := r.Shares(repairedAt+shop.Settled, stoppedAt).Used(); !slices.Equal(used, paths) {
		t.Errorf("soon after green came back only %v carried a share", used)
	}
	if used := after.Used(); !slices.Equal(used, paths) {
		t.Errorf("after green came back only %v carried a share", used)
	}
	if stop := r.LongestStop(testlab.Warmup, outageEnd); stop > testlab.LongestStop {
		t.Errorf("nothing arrived for %v", stop)
	}
}

// cutOff stops what brings the API server to the nodes: connections stay, and
// nobody answers. The function that it returns undoes that.
func (c *cluster) cutOff(t *testing.T) (connect func()) {
	t.Helper()
	forwarder := c.forwarder(t)
	if err := syscall.Kill(forwarder, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	connect = sync.OnceFunc(func() {
		if err := syscall.Kill(forwarder, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(connect)
	return connect
}

// forwarder finds the process by the name that the lab gives it.
func (c *cluster) forwarder(t *testing.T) int {
	t.Helper()
	processes, err := testlab.Processes(c.Name)
	if err != nil {
		t.Fatal(err)
	}
	for pid, command := range processes {
		if strings.HasPrefix(command, "braid-lab-forward") {
			return pid
		}
	}
	t.Fatalf("the lab has no forwarder: %v", processes)
	return 0
}

// expectRecovery changes the policy and waits until that is carried out: then
// controller and agents work again.
func (c *cluster) expectRecovery(t *testing.T, policy *v1alpha1.MPTCPPolicy) {
	t.Helper()
	c.Update(t, policy, func() { policy.Spec.Paths.Allowed = []v1alpha1.PathName{"blue", "red"} })
	took := c.WaitFor(t, "a change is programmed", time.Minute, func(ctx context.Context) error {
		c.KeepController(t)
		return c.Programmed(ctx, policy, 2)
	})
	t.Logf("a change of the policy was programmed %v after the API server had come back", took)
	c.ExpectUsed(t, "blue", "red")
}
