// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// transfer is one connection from a pod to another that moves bytes.
type transfer struct {
	from, to  string // pods
	version   int    // of IP
	direction traffic.Direction
	duration  time.Duration
}

// warmup is the beginning of each transfer that is not measured.
const warmup = time.Second

func (x transfer) String() string { return fmt.Sprintf("IPv%d %s", x.version, x.direction) }

// running is a transfer that goes on.
type running struct {
	transfer
	start  time.Time
	done   chan struct{}
	result *traffic.Result
	err    error
	wire   *recording
	opened atomic.Pointer[net.TCPConn]
	// stop, when it is closed, ends what the client sends.
	stop chan struct{}
}

// begin starts a transfer and records what the NICs of the sender's node do.
func (c *cluster) begin(t *testing.T, x transfer) *running {
	t.Helper()
	to := c.Network.Pod(x.to)
	return c.beginAt(t, x, net.JoinHostPort(to.Address(x.version), strconv.Itoa(lab.TrafficPort)))
}

// beginAt is begin to another address, which leads to the pod.
func (c *cluster) beginAt(t *testing.T, x transfer, address string) *running {
	t.Helper()
	from, to := c.Network.Pod(x.from), c.Network.Pod(x.to)
	sender := from.Node
	if x.direction == traffic.Down {
		sender = to.Node
	}
	options := traffic.Options{Direction: x.direction, Duration: x.duration, Warmup: min(warmup, x.duration/2), Verify: true}
	r := &running{transfer: x, start: time.Now(), done: make(chan struct{}), wire: c.record(sender), stop: make(chan struct{})}
	dial := func(ctx context.Context) (net.Conn, error) {
		connection, err := from.Dial(ctx, "tcp", address)
		if err == nil {
			r.opened.Store(connection.(*net.TCPConn))
		}
		return connection, err
	}
	go func() {
		defer close(r.done)
		defer r.wire.stop()
		options.Stop = r.stop
		r.result, r.err = traffic.Run(t.Context(), dial, options)
	}()
	return r
}

// subflows are those of the connection, as the kernel of the pod that opened it
// knows them.
func (r *running) subflows(t *testing.T) []traffic.Subflow {
	t.Helper()
	connection := r.opened.Load()
	if connection == nil {
		return nil
	}
	subflows, err := traffic.Subflows(connection)
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	return subflows
}

// carrying counts the subflows that have carried payload.
func (r *running) carrying(t *testing.T) (count int) {
	t.Helper()
	for _, subflow := range r.subflows(t) {
		if max(subflow.Sent, subflow.Received) > largestHandshake {
			count++
		}
	}
	return count
}

// largestHandshake is what a subflow may have carried that is no payload: SYN and FIN
// count as a byte.
const largestHandshake = 2

// finish waits for the end. The connection must have delivered every byte.
func (r *running) finish(t *testing.T) {
	t.Helper()
	<-r.done
	if r.err != nil {
		t.Fatalf("%s: %v", r, r.err)
	}
	if r.result.Failed > 0 || !r.result.Multipath {
		t.Fatalf("%s: the connection broke, or was not MPTCP: %v", r, r.result.Errors)
	}
	if r.wire.err != nil {
		t.Fatalf("%s: %v", r, r.wire.err)
	}
}

// run is a whole transfer.
func (c *cluster) run(t *testing.T, x transfer) *running {
	t.Helper()
	r := c.begin(t, x)
	r.finish(t)
	return r
}

// sleepUntil waits until so long after the beginning.
func (r *running) sleepUntil(after time.Duration) { time.Sleep(time.Until(r.start.Add(after))) }

// longestStop is the longest time within a part of the transfer in which nothing
// arrived, to the precision of a bin.
func (r *running) longestStop(from, to time.Duration) time.Duration {
	bin := time.Duration(r.result.BinMs * float64(time.Millisecond))
	var longest, current time.Duration
	for i := int(from / bin); i < int(to/bin); i++ {
		current += bin
		if i < len(r.result.Bins) && r.result.Bins[i] > 0 {
			current = 0
		}
		longest = max(longest, current)
	}
	return longest
}

// shares are the rates of the paths on the wire in Mbit/s, in a part of the
// transfer.
func (r *running) shares(from, to time.Duration) shares {
	return r.wire.rates(r.start.Add(from), r.start.Add(to))
}

// steady are the shares between warm-up and end.
func (r *running) steady() shares { return r.shares(min(warmup, r.duration/2), r.duration) }

// shares are rates in Mbit/s by path.
type shares map[string]float64

func (s shares) String() string {
	var parts []string
	for _, path := range paths {
		parts = append(parts, fmt.Sprintf("%s %.0f", path, s[path]))
	}
	return strings.Join(parts, ", ") + " Mbit/s"
}

// carried is the least rate at which a path counts as one that carries its share:
// clearly more than acknowledgements and stray packets.
const carried = linkMbit / 2

// used are the paths that carry a share.
func (s shares) used() (used []string) {
	for _, path := range paths {
		if s[path] >= carried {
			used = append(used, path)
		}
	}
	return used
}

// recording samples the counters of a node's NICs.
type recording struct {
	stopped chan struct{}
	done    chan struct{}
	samples []sample
	err     error
}

type sample struct {
	at   time.Time
	sent map[string]uint64 // bytes, by path
}

const sampling = 20 * time.Millisecond

func (c *cluster) record(node *network.Node) *recording {
	r := &recording{stopped: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		ticker := time.NewTicker(sampling)
		defer ticker.Stop()
		for {
			if r.err = r.sample(c.Network, node); r.err != nil {
				return
			}
			select {
			case <-r.stopped:
				return
			case <-ticker.C:
			}
		}
	}()
	return r
}

func (r *recording) stop() {
	close(r.stopped)
	<-r.done
}

func (r *recording) sample(n *network.Network, node *network.Node) error {
	counters, err := n.NICCounters(node)
	if err != nil {
		return err
	}
	s := sample{at: time.Now(), sent: map[string]uint64{}}
	for path, counter := range counters {
		s.sent[path] = counter.TxBytes
	}
	r.samples = append(r.samples, s)
	return nil
}

// rates are those between two times.
func (r *recording) rates(from, to time.Time) shares {
	first, last := r.before(from), r.before(to)
	rates := shares{}
	for path := range last.sent {
		bytes := last.sent[path] - first.sent[path]
		rates[path] = float64(bytes) * 8 / 1e6 / last.at.Sub(first.at).Seconds()
	}
	return rates
}

// before is the last sample before a time, or the first one.
func (r *recording) before(at time.Time) sample {
	found := r.samples[0]
	for _, s := range r.samples {
		if s.at.After(at) {
			break
		}
		found = s
	}
	return found
}

// carriesAgain is how long after a time a path first carries its share, over a
// window long enough not to be a burst; false when it never does.
func (r *recording) carriesAgain(path string, since time.Time) (time.Duration, bool) {
	const window = 200 * time.Millisecond
	for _, s := range r.samples {
		begin := s.at.Add(-window)
		if begin.Before(since) {
			continue
		}
		if r.rates(begin, s.at)[path] >= carried {
			return begin.Sub(since), true
		}
	}
	return 0, false
}
