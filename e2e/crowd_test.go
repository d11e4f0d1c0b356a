// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	// crowdSize are as many connections as fill all paths several times.
	crowdSize = 120
	// seenFull is until the agents know that paths are full, with some to spare.
	seenFull = 2 * time.Second
)

// crowd starts connections that send, and returns what ends all of them.
func crowd(t *testing.T, from, to *network.Pod, connections int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	dial := traffic.DialFunc(func(ctx context.Context) (net.Conn, error) {
		return from.Dial(ctx, "tcp", net.JoinHostPort(to.IPv4, strconv.Itoa(lab.TrafficPort)))
	}).WithSendBuffer(64 << 10)
	var running sync.WaitGroup
	running.Go(func() {
		_, _ = traffic.Run(ctx, dial, traffic.Options{Connections: connections, Duration: time.Hour})
	})
	end = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(end)
	return end
}

// The connections of a tenant that fills the paths wait for further subflows, another
// tenant's do not. They have them when the paths have room again.
func TestOneWhoFillsThePathsWaitsForFurtherSubflowsAndNobodyElse(t *testing.T) {
	for _, manager := range []v1alpha1.SubflowManager{v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent} {
		t.Run(string(manager), func(t *testing.T) {
			c := use(t)
			tenant := testlab.NewPolicy("tenant", "client", "server")
			tenant.Spec.Subflows.Manager = manager
			c.Spread(t, shop.Policy(manager), 2)
			c.Create(t, tenant)
			c.WaitProgrammed(t, tenant, 2)
			pod := c.Network.Pod
			end := crowd(t, pod("tenant-client"), pod("tenant-server"), crowdSize)
			time.Sleep(seenFull)
			waits := testlab.StartStream(t, pod("tenant-client"), pod("tenant-server"))
			other := testlab.StartStream(t, pod("client"), pod("server"))
			c.waitForAnswer(t, other)
			c.waitForSubflows(t, "another tenant's connection", other)
			time.Sleep(time.Second) // twice what it waits where there is room
			if subflows, err := traffic.Subflows(waits.Connection); err != nil || len(subflows) != 1 {
				t.Errorf("a connection of the tenant that fills the paths has the subflows %+v (%v), want one", subflows, err)
			}
			end()
			c.waitForSubflows(t, "the connection that waited", waits)
		})
	}
}

// waitForAnswer waits until data of a stream was acknowledged: where paths are this full TCP
// may repeat its first segment for longer than subflows take.
func (c *cluster) waitForAnswer(t *testing.T, stream *testlab.Stream) {
	t.Helper()
	const synAlone = 1
	c.WaitFor(t, "the other end answers", time.Minute, func(context.Context) error {
		subflows, err := traffic.Subflows(stream.Connection)
		if err == nil && (len(subflows) == 0 || subflows[0].Sent <= synAlone) {
			err = fmt.Errorf("it has %+v", subflows)
		}
		return err
	})
}

func (c *cluster) waitForSubflows(t *testing.T, of string, stream *testlab.Stream) {
	t.Helper()
	took := c.WaitFor(t, of+" has all subflows", 20*time.Second, func(context.Context) error {
		subflows, err := traffic.Subflows(stream.Connection)
		if err == nil && len(subflows) != len(paths) {
			err = fmt.Errorf("it has %+v", subflows)
		}
		return err
	})
	t.Logf("%s had all subflows after %s", of, took)
}
