// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

// stream sends a little again and again until the test ends.
func stream(t *testing.T, from, to net.Conn) {
	t.Helper()
	var flowing sync.WaitGroup
	flowing.Go(func() { _, _ = io.Copy(io.Discard, to) })
	flowing.Go(func() {
		for block := make([]byte, 8<<10); ; time.Sleep(10 * time.Millisecond) {
			if _, err := from.Write(block); err != nil {
				return
			}
		}
	})
	t.Cleanup(func() { _ = from.Close(); _ = to.Close(); flowing.Wait() })
}

// expectCubic waits until the subflows of a pod have the congestion control that it was asked for.
func expectCubic(t *testing.T, pod *network.Pod) {
	t.Helper()
	testutil.Eventually(t, 5*time.Second, "the sender does what it is asked for", func() bool {
		out, err := pod.Run("ss", "-tiHO", "state", "established")
		require.NoError(t, err)
		return strings.Contains(out, " cubic ")
	})
}

// Whoever only receives has no round trips that its kernel tells of, and asks nevertheless.
func TestWhoOnlyReceivesAsksTheSender(t *testing.T) {
	asks := &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{CongestionControl: "cubic"}}
	accepts := acceptsAll("0.0.0.0/0")
	for _, protocol := range []string{"TCP", "MPTCP"} {
		t.Run(protocol, func(t *testing.T) {
			p := newPair(t, nil)
			_, err := p.client.Run("sysctl", "-qw", "net.ipv4.tcp_congestion_control=reno")
			require.NoError(t, err)
			p.serve(t, p.server.IPv4)
			t.Run("a client that has asked for something", func(t *testing.T) {
				p.apply(t, asks, accepts)
				client, server := p.connect(t, protocol, p.server.IPv4)
				ping(t, client, server)
				stream(t, server, client)
				expectCubic(t, p.server)
			})
			t.Run("a client that has said nothing", func(t *testing.T) {
				client, server := p.connect(t, protocol, p.server.IPv4)
				stream(t, server, client)
				expectCubic(t, p.server)
			})
			t.Run("a server", func(t *testing.T) {
				p.apply(t, accepts, asks)
				client, server := p.connect(t, protocol, p.server.IPv4)
				stream(t, client, server)
				expectCubic(t, p.client)
			})
		})
	}
}
