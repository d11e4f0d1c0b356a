// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// lab is a network whose first node has a guard.
type lab struct {
	*network.Network
	guard   *Guard
	builder *node.Builder
	options Options
	state   nodetest.State
	stop    context.CancelFunc
	stopped chan error
}

// newLab builds two nodes with pods; those of the first one belong to tenant-1,
// tenant-2 and so on. BRAID_E2E_NETWORK says by what network they reach each other where
// the test does not: all tests must pass on each.
func newLab(t *testing.T, spec network.Spec) *lab {
	t.Helper()
	pins := testutil.BPFFS(t)
	l := &lab{options: Options{
		PinPath: pins,
		Log:     testr.New(t),
	}}
	spec.Nodes = 2
	if name := os.Getenv("BRAID_E2E_NETWORK"); name != "" && spec.Overlay == (network.Overlay{}) {
		overlay, err := network.OverlayNamed(name)
		require.NoError(t, err)
		spec.Overlay = overlay
	}
	l.Network = network.ForTest(t, spec)
	l.state = l.describe(t)
	l.begin(t)
	t.Cleanup(func() {
		l.end(t)
		require.NoError(t, l.remove(l.Nodes[0], Open(l.options)))
	})
	return l
}

// begin starts an agent's guard, and end stops it and leaves everything behind.
func (l *lab) begin(t *testing.T) {
	t.Helper()
	l.guard, l.builder = Open(l.options), nodetest.NewBuilder(l.options.PinPath)
	ctx, cancel := context.WithCancel(context.Background())
	l.stop, l.stopped = cancel, make(chan error, 1)
	go func() { l.stopped <- l.guard.Run(ctx) }()
}

func (l *lab) end(t *testing.T) {
	t.Helper()
	if l.guard == nil {
		return
	}
	l.stop()
	require.NoError(t, <-l.stopped)
	require.NoError(t, errors.Join(l.guard.Close(), l.builder.Close()))
	l.guard = nil
}

// describe is the first node without limits.
func (l *lab) describe(t *testing.T) (state nodetest.State) {
	t.Helper()
	first := l.Nodes[0]
	state.Tunnels = tunnelsOf(t, first)
	for _, path := range l.Spec.Paths {
		index, err := first.Index(path)
		require.NoError(t, err)
		state.Paths = append(state.Paths, nodetest.Path{Name: path, Interface: index, Up: true, Capacity: int64(l.Spec.LinkMbit) * 1_000_000})
	}
	for i, pod := range first.Pods {
		index, err := first.Index(pod.HostInterface)
		require.NoError(t, err)
		state.Endpoints = append(state.Endpoints, nodetest.Endpoint{
			UID: types.UID(pod.PodName), Namespace: fmt.Sprintf("tenant-%d", i+1), Name: pod.PodName, Interface: index,
			Addresses: []netip.Addr{netip.MustParseAddr(pod.IPv4), netip.MustParseAddr(pod.IPv6)},
		})
	}
	return state
}

// tunnelsOf are those that an agent of the node finds.
func tunnelsOf(t *testing.T, node *network.Node) []paths.Tunnel {
	t.Helper()
	namespace, err := netns.GetFromPath(node.Path())
	require.NoError(t, err)
	defer namespace.Close()
	opened, err := paths.Open(namespace)
	require.NoError(t, err)
	defer opened.Close()
	found, err := opened.Resolve(paths.Query{})
	require.NoError(t, err)
	return found.Tunnels
}

func (l *lab) apply(t *testing.T) {
	t.Helper()
	require.NoError(t, l.Nodes[0].Do(func() error { return l.state.Apply(context.Background(), l.guard, l.builder) }))
}

// remove removes what a part made on a node.
func (l *lab) remove(on *network.Node, part node.Part) error {
	return on.Do(func() error { return part.Remove(context.Background()) })
}

// tenant adds what a tenant may have of a path.
func (l *lab) tenant(namespace, path string, maxRate int64, weight int32) {
	l.state.Tenants = append(l.state.Tenants, v1alpha1.PlanTenant{
		Namespace: namespace, Paths: []v1alpha1.PlanTenantPath{{Path: v1alpha1.PathName(path), MaxRate: maxRate, Weight: weight}},
	})
}

// received is what a pod's interface received so far, in bytes.
func received(t *testing.T, pod *network.Pod) uint64 {
	t.Helper()
	counters, err := pod.Counters("eth0")
	require.NoError(t, err)
	return counters.RxBytes
}

// rates are what pods receive over this time, in Mbit/s.
func rates(t *testing.T, over time.Duration, pods ...*network.Pod) []float64 {
	t.Helper()
	return measure(t, over, pods, received)
}

func measure[T any](t *testing.T, over time.Duration, of []T, read func(*testing.T, T) uint64) []float64 {
	t.Helper()
	before, began := make([]uint64, len(of)), make([]time.Time, len(of))
	for i, one := range of {
		before[i], began[i] = readAt(t, one, read)
	}
	time.Sleep(over)
	found := make([]float64, len(of))
	for i, one := range of {
		after, ended := readAt(t, one, read)
		found[i] = float64(after-before[i]) * 8 / 1e6 / ended.Sub(began[i]).Seconds()
	}
	return found
}

// readAt reads a counter, and again where the machine did something else meanwhile, so
// that nobody knows of when it is.
func readAt[T any](t *testing.T, of T, read func(*testing.T, T) uint64) (value uint64, at time.Time) {
	t.Helper()
	for range 20 {
		at = time.Now()
		value = read(t, of)
		if time.Since(at) < 5*time.Millisecond {
			break
		}
	}
	return value, at
}

// sent are what the first node's NICs send over this time, in Mbit/s.
func (l *lab) sent(t *testing.T, over time.Duration, paths ...string) []float64 {
	t.Helper()
	return measure(t, over, paths, func(t *testing.T, path string) uint64 {
		counters, err := l.Nodes[0].Counters(path)
		require.NoError(t, err)
		return counters.TxBytes
	})
}

// expectMost checks that rates are no more than limits, as far as counters read one
// after the other can tell, and no less than a part of them.
func expectMost(t *testing.T, what string, found []float64, limit, least float64) {
	t.Helper()
	t.Logf("%s: %.2f of %.2f Mbit/s", what, found, limit)
	for _, rate := range found {
		if rate > limit*1.01+burst.Seconds()*limit/measured.Seconds() {
			t.Errorf("%s: %.2f Mbit/s were sent, beyond %.2f", what, rate, limit)
		}
		if rate < limit*least {
			t.Errorf("%s: only %.2f of %.2f Mbit/s were sent", what, rate, limit)
		}
	}
}

const (
	burst = 50 * time.Millisecond
	// settled is after what was saved for a burst, and the beginnings of TCP.
	settled  = 700 * time.Millisecond
	measured = 2500 * time.Millisecond
)

// flood sends UDP datagrams of so many bytes as fast as wanted until the test ends.
func flood(t *testing.T, from, to *network.Pod, version, size int, mbit float64) {
	t.Helper()
	floodWith(t, from, net.JoinHostPort(to.Address(version), "9"), make([]byte, size), mbit)
}

// floodWith is the same to any address, with datagrams of one's own.
func floodWith(t *testing.T, from *network.Pod, to string, payload []byte, mbit float64) {
	t.Helper()
	var connection net.Conn
	require.NoError(t, from.Do(func() (err error) {
		connection, err = net.Dial("udp", to)
		return err
	}))
	done := make(chan struct{})
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); <-done; connection.Close() })
	go func() {
		defer close(done)
		began, sent := time.Now(), 0.0
		for {
			select {
			case <-stop:
				return
			default:
			}
			if sent*8/1e6 > time.Since(began).Seconds()*mbit {
				time.Sleep(time.Millisecond)
				continue
			}
			_, _ = connection.Write(payload) // refused where nobody listens
			sent += float64(len(payload))
		}
	}()
}

const port = "5001"

func serve(t *testing.T, pod *network.Pod, version int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := pod.Listen(ctx, "tcp", net.JoinHostPort(pod.Address(version), port))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- traffic.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
}

// transfer begins connections from one pod to another.
func transfer(t *testing.T, from, to *network.Pod, version int, options traffic.Options) (wait func() *traffic.Result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), options.Duration+30*time.Second)
	done := make(chan struct{})
	var result *traffic.Result
	var err error
	go func() {
		defer close(done)
		result, err = traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) {
			return from.Dial(ctx, "tcp", net.JoinHostPort(to.Address(version), port))
		}, options)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return func() *traffic.Result {
		t.Helper()
		<-done
		require.NoError(t, err)
		return result
	}
}

func mbit(n int64) int64 { return n * 1_000_000 }
