// SPDX-License-Identifier: Apache-2.0

package traffic_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// serve starts a server in a namespace and returns its address.
func serve(t *testing.T, ns *network.Namespace, address string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := ns.Listen(ctx, "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- traffic.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	return listener.Addr().String()
}

func dialer(ns *network.Namespace, address string) traffic.DialFunc {
	return func(ctx context.Context) (net.Conn, error) { return ns.Dial(ctx, "tcp", address) }
}

func run(t *testing.T, dial traffic.DialFunc, options traffic.Options) *traffic.Result {
	t.Helper()
	result, err := traffic.Run(t.Context(), dial, options)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestGoodputOfOneLink(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1, LinkMbit: 100})
	client, server := n.Pod("pod-1-1"), n.Pod("pod-2-1")
	for _, version := range []int{4, 6} {
		address := serve(t, server.Namespace, server.Address(version))
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			options := traffic.Options{Direction: direction, Duration: time.Second, Warmup: 300 * time.Millisecond, Verify: true}
			result := run(t, dialer(client.Namespace, address), options)
			if result.Mbit < 60 || result.Mbit > 105 || !result.Multipath || result.Subflows != 1 || result.Failed != 0 {
				t.Errorf("IPv%d %s: %.1f Mbit/s, multipath %t, subflows %d, failed %d %v",
					version, direction, result.Mbit, result.Multipath, result.Subflows, result.Failed, result.Errors)
			}
		}
	}
}

func TestWhatIsStoppedEndsItsStreamBeforeTheTime(t *testing.T) {
	ns := network.NamespaceForTest(t)
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		stop := make(chan struct{})
		time.AfterFunc(300*time.Millisecond, func() { close(stop) })
		begun := time.Now()
		options := traffic.Options{Direction: direction, Duration: time.Minute, OfferedMbit: 20, Verify: true, Stop: stop}
		result := run(t, dialer(ns, serve(t, ns, "127.0.0.1")), options)
		if took := time.Since(begun); took > 30*time.Second || result.Failed != 0 || result.Bytes == 0 || result.LatestMs != 0 || !result.Multipath {
			t.Errorf("%s: it took %v, %d bytes arrived, failed %d %v, %.0f ms late, multipath %t",
				direction, took, result.Bytes, result.Failed, result.Errors, result.LatestMs, result.Multipath)
		}
	}
}

func TestASenderOffersNoMoreThanItsRate(t *testing.T) {
	ns := network.NamespaceForTest(t)
	address := serve(t, ns, "127.0.0.1")
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		options := traffic.Options{Direction: direction, OfferedMbit: 20, Duration: time.Second, Warmup: 100 * time.Millisecond, Verify: true}
		result := run(t, dialer(ns, address), options)
		if result.Mbit < 15 || result.Mbit > 22 || result.Failed != 0 {
			t.Errorf("%s: %.1f Mbit/s, failed %d %v", direction, result.Mbit, result.Failed, result.Errors)
		}
	}
}

func TestASenderOfSmallPiecesSendsTheSame(t *testing.T) {
	ns := network.NamespaceForTest(t)
	result := run(t, dialer(ns, serve(t, ns, "127.0.0.1")), traffic.Options{Duration: time.Second, Piece: 100, Verify: true})
	if result.Bytes < 1<<20 || result.Failed != 0 {
		t.Errorf("%d bytes arrived, failed %d %v", result.Bytes, result.Failed, result.Errors)
	}
}

func TestManyConnectionsShareALink(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1, LinkMbit: 100})
	client, server := n.Pod("pod-1-1"), n.Pod("pod-2-1")
	address := serve(t, server.Namespace, server.IPv4)
	result := run(t, dialer(client.Namespace, address), traffic.Options{Connections: 20, Duration: time.Second})
	var sum float64
	for _, rate := range result.ConnectionMbit {
		sum += rate
	}
	if len(result.ConnectionMbit) != 20 || sum < result.Mbit-0.01 || sum > result.Mbit+0.01 || result.Failed != 0 {
		t.Errorf("%d connections with %.1f Mbit/s in sum, %.1f in all, failed %v", len(result.ConnectionMbit), sum, result.Mbit, result.Errors)
	}
}

func TestAServerThatFallsBackShowsAsPlainTCP(t *testing.T) {
	ns := network.NamespaceForTest(t)
	if err := ns.Sysctl("net.mptcp.enabled", "0"); err != nil {
		t.Fatal(err)
	}
	address := serve(t, ns, "127.0.0.1")
	if err := ns.Sysctl("net.mptcp.enabled", "1"); err != nil {
		t.Fatal(err)
	}
	result := run(t, dialer(ns, address), traffic.Options{Duration: 100 * time.Millisecond})
	if result.Multipath || result.Subflows != 1 || result.Bytes == 0 {
		t.Errorf("multipath %t, subflows %d, bytes %d", result.Multipath, result.Subflows, result.Bytes)
	}
}

func TestAStallShowsAsGap(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue"}, PodsPerNode: 1, LinkMbit: 100})
	client, server := n.Pod("pod-1-1"), n.Pod("pod-2-1")
	address := serve(t, server.Namespace, server.IPv4)
	stall := make(chan error, 1)
	time.AfterFunc(500*time.Millisecond, func() {
		err := n.SetCarrier(client.Node, "blue", false)
		time.Sleep(300 * time.Millisecond)
		if err == nil {
			err = n.SetCarrier(client.Node, "blue", true)
		}
		stall <- err
	})
	result := run(t, dialer(client.Namespace, address), traffic.Options{Duration: 2 * time.Second})
	if err := <-stall; err != nil {
		t.Fatal(err)
	}
	if result.LongestGapMs < 250 || result.Failed != 0 {
		t.Errorf("longest gap %.0f ms, failed %d", result.LongestGapMs, result.Failed)
	}
}

// proxy passes bytes on and changes one of them.
func proxy(t *testing.T, to string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		client, err := listener.Accept()
		if err != nil {
			return
		}
		defer client.Close()
		server, err := net.Dial("tcp", to)
		if err != nil {
			return
		}
		defer server.Close()
		go func() {
			buffer := make([]byte, 5000)
			n, _ := io.ReadFull(client, buffer)
			buffer[4000] ^= 1
			_, _ = server.Write(buffer[:n])
			_, _ = io.Copy(server, client)
			_ = server.(*net.TCPConn).CloseWrite()
		}()
		_, _ = io.Copy(client, server)
	}()
	return listener.Addr().String()
}

func TestAChangedByteIsNoticed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { _ = traffic.Serve(ctx, listener) }()
	through := proxy(t, listener.Addr().String())
	result := run(t, traffic.DialPlain(through), traffic.Options{Duration: 100 * time.Millisecond, Verify: true})
	if result.Failed != 1 {
		t.Errorf("failed %d, errors %v", result.Failed, result.Errors)
	}
}

func TestMbitBetweenCountsOnlyTheBinsInside(t *testing.T) {
	result := traffic.Result{BinMs: 100, Bins: []int64{1, 1_250_000, 1_250_000, 7}}
	cases := map[string]struct {
		from, to time.Duration
		expected float64
	}{
		"two full bins":            {100 * time.Millisecond, 300 * time.Millisecond, 100},
		"beyond the last arrivals": {200 * time.Millisecond, 700 * time.Millisecond, 20.000112},
		"nothing between":          {100 * time.Millisecond, 100 * time.Millisecond, 0},
	}
	for name, c := range cases {
		if got := result.MbitBetween(c.from, c.to); got < c.expected-1e-6 || got > c.expected+1e-6 {
			t.Errorf("%s: %v instead of %v", name, got, c.expected)
		}
	}
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	cases := map[string]traffic.Options{
		"no duration":               {},
		"warm-up as long as it all": {Duration: time.Second, Warmup: time.Second},
		"unknown direction":         {Duration: time.Second, Direction: "sideways"},
		"negative connections":      {Duration: time.Second, Connections: -1},
		"negative pieces":           {Duration: time.Second, Piece: -1},
	}
	for name, options := range cases {
		if _, err := traffic.Run(t.Context(), traffic.Dial("127.0.0.1:1"), options); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
