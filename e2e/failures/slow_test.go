// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/middlebox"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

const (
	// fetched is how many bytes a short connection brings, and fetchers how many of them there are at
	// a time, each after the other.
	fetched, fetchers = 20 << 10, 6
	// slowMbit is the rate of a path that is slow for these, and lost the share of packets that one loses at each of
	// two nodes.
	slowMbit, lost = 1, 0.01
)

// A path is slower somewhere than its NICs tell, in both directions, or loses packets. Short connections that begin
// there would have no further subflow in time: after the first ones none do, until it is as good as the others again.
func TestShortConnectionsBeginOnNoPathThatIsMuchSlower(t *testing.T) {
	for _, test := range []struct {
		name    string
		manager v1alpha1.SubflowManager
		hurt    func(c *cluster, t *testing.T, path string) (restore func())
	}{
		{"Kernel", v1alpha1.SubflowManagerKernel, (*cluster).shape},
		{"Agent", v1alpha1.SubflowManagerAgent, (*cluster).shape},
		{"it loses packets", v1alpha1.SubflowManagerKernel, (*cluster).lose},
		{"it lets no MPTCP through", v1alpha1.SubflowManagerKernel, (*cluster).refuse},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := use(t)
			c.Spread(t, shop.Policy(test.manager), 2)
			slow, client := paths[len(paths)-1], c.Network.Pod("client").Node
			pairs := func() float64 {
				return c.AgentMetric(t, client, fmt.Sprintf("braid_path_slow_pairs{path=%q}", slow))
			}
			fetches := c.fetch(t)
			require.Zero(t, pairs())
			restore := test.hurt(c, t, slow)
			testutil.Eventually(t, 60*time.Second, "connections begin elsewhere", func() bool { return pairs() > 0 })
			time.Sleep(2 * time.Second) // those that began there have further subflows
			before := c.sentTo(t, client)
			count := fetches()
			time.Sleep(5 * time.Second) // before it is tried again
			after, all := c.sentTo(t, client), 0.0
			for _, path := range paths {
				all += after[path] - before[path]
			}
			part := (after[slow] - before[slow]) / all
			t.Logf("%d connections, of whose bytes %s had %.4f", fetches()-count, slow, part)
			require.Less(t, part, 0.02)
			restore()
			testutil.Eventually(t, 2*time.Minute, "connections begin there again", func() bool { return pairs() == 0 })
		})
	}
}

// refuse puts a firewall on a path that drops SYNs with MPTCP's options, until it is restored.
func (c *cluster) refuse(t *testing.T, path string) (restore func()) {
	t.Helper()
	if c.Network.Spec.Overlay != (network.Overlay{}) {
		t.Skip("a box sees no TCP in tunnels")
	}
	kind, known := middlebox.Named("drop_syn")
	require.True(t, known)
	require.NoError(t, c.Network.Interpose(path, kind.New()))
	restore = sync.OnceFunc(func() {
		if err := c.Network.Interpose(path, nil); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// lose makes a path lose packets at the nodes of the client and the server, until it is restored.
func (c *cluster) lose(t *testing.T, path string) (restore func()) {
	t.Helper()
	nodes := []*network.Node{c.Network.Pod("client").Node, c.Network.Pod("server").Node}
	for _, node := range nodes {
		require.NoError(t, c.Network.Lose(node, path, lost))
	}
	restore = sync.OnceFunc(func() {
		for _, node := range nodes {
			if err := c.Network.Block(node, path, false); err != nil {
				t.Error(err)
			}
		}
	})
	t.Cleanup(restore)
	return restore
}

// shape makes a path slow at the nodes of the client and the server, until it is restored.
func (c *cluster) shape(t *testing.T, path string) (restore func()) {
	t.Helper()
	set := func(mbit int) {
		for _, pod := range []string{"client", "server"} {
			if err := c.Network.Pod(pod).Node.Shape(path, mbit); err != nil {
				t.Error(err)
			}
		}
	}
	set(slowMbit)
	restore = sync.OnceFunc(func() { set(testlab.LinkMbit) })
	t.Cleanup(restore)
	return restore
}

// sentTo are the bytes that came in at a node's NICs, by path.
func (c *cluster) sentTo(t *testing.T, node *network.Node) map[string]float64 {
	t.Helper()
	counters, err := c.Network.NICCounters(node)
	require.NoError(t, err)
	bytes := map[string]float64{}
	for _, path := range paths {
		bytes[path] = float64(counters[path].RxBytes)
	}
	return bytes
}

// fetch has the client open short connections to the server until the test ends, and returns how many
// there were so far.
func (c *cluster) fetch(t *testing.T) (count func() int) {
	t.Helper()
	from, to := c.Network.Pod("client"), c.Network.Pod("server")
	listener, err := to.Listen(t.Context(), "tcp", net.JoinHostPort(to.IPv4, "0"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var working sync.WaitGroup
	working.Go(func() { serveFiles(listener) })
	var mutex sync.Mutex
	ended := 0
	for range fetchers {
		working.Go(func() {
			for ctx.Err() == nil {
				if err := fetchOne(ctx, from, listener.Addr().String()); err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
				mutex.Lock()
				ended++
				mutex.Unlock()
			}
		})
	}
	t.Cleanup(func() { cancel(); _ = listener.Close(); working.Wait() })
	return func() int { mutex.Lock(); defer mutex.Unlock(); return ended }
}

func fetchOne(ctx context.Context, from *network.Pod, address string) error {
	connection, err := from.DialBy(ctx, network.MPTCP, "tcp", address)
	if err != nil {
		return err
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { _ = connection.Close() })
	defer stop()
	read, err := io.Copy(io.Discard, connection)
	if err == nil && read != fetched {
		err = fmt.Errorf("%d bytes came of %d", read, fetched)
	}
	return err
}

// serveFiles gives each connection what it fetches.
func serveFiles(listener net.Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		serving.Go(func() {
			_, _ = connection.Write(make([]byte, fetched))
			_ = connection.Close()
		})
	}
}
