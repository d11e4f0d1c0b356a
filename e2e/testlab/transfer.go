// SPDX-License-Identifier: Apache-2.0

package testlab

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// LinkMbit is what each link of a lab carries in which transfers are looked at path by path.
const LinkMbit = 30

// LongestStop is what a connection must not exceed on a busy machine; on an idle
// one it is a tenth of that.
const LongestStop = 2 * time.Second

// SpreadTime is for how long a connection lasts that is to use all NICs.
const SpreadTime = 3500 * time.Millisecond

// Transfer is one connection from a pod to another that moves bytes.
type Transfer struct {
	From, To  string // pods
	Version   int    // of IP
	Direction traffic.Direction
	Duration  time.Duration
	// Piece is how many bytes are written at a time; 0 means many.
	Piece int
}

// Warmup is the beginning of each transfer that is not measured.
const Warmup = time.Second

// NewTransfer is one by a version of IP, in a direction, for so long.
func NewTransfer(from, to string, version int, direction traffic.Direction, duration time.Duration) Transfer {
	return Transfer{From: from, To: to, Version: version, Direction: direction, Duration: duration}
}

func (x Transfer) String() string { return fmt.Sprintf("IPv%d %s", x.Version, x.Direction) }

// Running is a transfer that goes on.
type Running struct {
	Transfer
	Began  time.Time
	Done   chan struct{}
	Result *traffic.Result
	Err    error
	Wire   *Recording
	opened atomic.Pointer[net.TCPConn]
	// stop, when it is closed, ends what the client sends.
	stop chan struct{}
}

// Begin starts a transfer and records what the NICs of the sender's node do.
func (c *Cluster) Begin(t testing.TB, x Transfer) *Running {
	t.Helper()
	to := c.Network.Pod(x.To)
	return c.BeginAt(t, x, net.JoinHostPort(to.Address(x.Version), strconv.Itoa(lab.TrafficPort)))
}

// BeginAt is Begin to another address, which leads to the pod.
func (c *Cluster) BeginAt(t testing.TB, x Transfer, address string) *Running {
	t.Helper()
	from, to := c.Network.Pod(x.From), c.Network.Pod(x.To)
	sender := from.Node
	if x.Direction == traffic.Down {
		sender = to.Node
	}
	options := traffic.Options{Direction: x.Direction, Duration: x.Duration, Warmup: min(Warmup, x.Duration/2), Piece: x.Piece, Verify: true}
	r := &Running{Transfer: x, Began: time.Now(), Done: make(chan struct{}), Wire: c.Record(sender), stop: make(chan struct{})}
	dial := func(ctx context.Context) (net.Conn, error) {
		connection, err := from.Dial(ctx, "tcp", address)
		if err == nil {
			r.opened.Store(connection.(*net.TCPConn))
		}
		return connection, err
	}
	go func() {
		defer close(r.Done)
		defer r.Wire.Stop()
		options.Stop = r.stop
		r.Result, r.Err = traffic.Run(t.Context(), dial, options)
	}()
	return r
}

// StopSending ends what the client sends before its time.
func (r *Running) StopSending() { close(r.stop) }

// Connection is that of the client; nil until it is open.
func (r *Running) Connection() *net.TCPConn { return r.opened.Load() }

// Subflows are those of the connection, as the kernel of the pod that opened it
// knows them.
func (r *Running) Subflows(t testing.TB) []traffic.Subflow {
	t.Helper()
	connection := r.Connection()
	if connection == nil {
		return nil
	}
	subflows, err := traffic.Subflows(connection)
	if err != nil {
		t.Fatalf("%s: %v", r, err)
	}
	return subflows
}

// describe tells what the client's kernel says of the connection: one that began as plain TCP, or
// got no subflows, cannot go by several paths.
func (r *Running) describe() string {
	connection := r.Connection()
	if connection == nil {
		return "the connection is not open"
	}
	subflows, err := traffic.Subflows(connection)
	if err != nil {
		return fmt.Sprintf("failed to ask for its subflows, as plain TCP has none: %v", err)
	}
	return fmt.Sprintf("it has %d subflows: %+v", len(subflows), subflows)
}

// Carrying counts the subflows that have carried payload.
func (r *Running) Carrying(t testing.TB) (count int) {
	t.Helper()
	for _, subflow := range r.Subflows(t) {
		if max(subflow.Sent, subflow.Received) > largestHandshake {
			count++
		}
	}
	return count
}

// largestHandshake is what a subflow may have carried that is no payload: SYN and FIN
// count as a byte.
const largestHandshake = 2

// Finish waits for the end. The connection must have delivered every byte.
func (r *Running) Finish(t testing.TB) {
	t.Helper()
	<-r.Done
	if r.Err != nil {
		t.Fatalf("%s: %v", r, r.Err)
	}
	if r.Result.Failed > 0 || !r.Result.Multipath {
		t.Fatalf("%s: the connection broke, or was not MPTCP: %v", r, r.Result.Errors)
	}
	if r.Wire.Err != nil {
		t.Fatalf("%s: %v", r, r.Wire.Err)
	}
}

// Run is a whole transfer.
func (c *Cluster) Run(t testing.TB, x Transfer) *Running {
	t.Helper()
	r := c.Begin(t, x)
	r.Finish(t)
	return r
}

// SleepUntil waits until so long after the beginning.
func (r *Running) SleepUntil(after time.Duration) { time.Sleep(time.Until(r.Began.Add(after))) }

// LongestStop is the longest time within a part of the transfer in which nothing
// arrived, to the precision of a bin.
func (r *Running) LongestStop(from, to time.Duration) time.Duration {
	bin := time.Duration(r.Result.BinMs * float64(time.Millisecond))
	var longest, current time.Duration
	for i := int(from / bin); i < int(to/bin); i++ {
		current += bin
		if i < len(r.Result.Bins) && r.Result.Bins[i] > 0 {
			current = 0
		}
		longest = max(longest, current)
	}
	return longest
}

// Shares are the rates of the paths on the wire in Mbit/s, in a part of the
// transfer.
func (r *Running) Shares(from, to time.Duration) Rates {
	return r.Wire.Rates(r.Began.Add(from), r.Began.Add(to))
}

// Steady are the shares between warm-up and end.
func (r *Running) Steady() Rates { return r.Shares(min(Warmup, r.Duration/2), r.Duration) }

// Rates are in Mbit/s, by path.
type Rates map[string]float64

func (s Rates) String() string {
	var parts []string
	for _, path := range slices.Sorted(maps.Keys(s)) {
		parts = append(parts, fmt.Sprintf("%s %.0f", path, s[path]))
	}
	return strings.Join(parts, ", ") + " Mbit/s"
}

// Carried is the least rate at which a path counts as one that carries its share:
// clearly more than acknowledgements and stray packets.
const Carried = LinkMbit / 2

// Used are the paths that carry a share.
func (s Rates) Used() (used []string) {
	for _, path := range slices.Sorted(maps.Keys(s)) {
		if s[path] >= Carried {
			used = append(used, path)
		}
	}
	return used
}

// Of is the rate of some paths together.
func (s Rates) Of(some []string) (rate float64) {
	for _, path := range some {
		rate += s[path]
	}
	return rate
}

// Recording samples the counters of a node's NICs.
type Recording struct {
	stopped chan struct{}
	Done    chan struct{}
	Samples []Sample
	Err     error
}

// Sample is what the NICs had sent at a time.
type Sample struct {
	At   time.Time
	Sent map[string]uint64 // bytes, by path
}

// Sampling is the time from one sample to the next.
const Sampling = 20 * time.Millisecond

// Record samples what the NICs of a node have sent, until it is stopped.
func (c *Cluster) Record(node *network.Node) *Recording {
	r := &Recording{stopped: make(chan struct{}), Done: make(chan struct{})}
	go func() {
		defer close(r.Done)
		ticker := time.NewTicker(Sampling)
		defer ticker.Stop()
		for {
			if r.Err = r.sample(c.Network, node); r.Err != nil {
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

// Stop ends it, and waits until that is so.
func (r *Recording) Stop() {
	close(r.stopped)
	<-r.Done
}

func (r *Recording) sample(n *network.Network, node *network.Node) error {
	counters, err := n.NICCounters(node)
	if err != nil {
		return err
	}
	s := Sample{At: time.Now(), Sent: map[string]uint64{}}
	for path, counter := range counters {
		s.Sent[path] = counter.TxBytes
	}
	r.Samples = append(r.Samples, s)
	return nil
}

// Rates are those between two times.
func (r *Recording) Rates(from, to time.Time) Rates {
	first, last := r.Before(from), r.Before(to)
	rates := Rates{}
	for path := range last.Sent {
		bytes := last.Sent[path] - first.Sent[path]
		rates[path] = float64(bytes) * 8 / 1e6 / last.At.Sub(first.At).Seconds()
	}
	return rates
}

// Before is the last sample before a time, or the first one.
func (r *Recording) Before(at time.Time) Sample {
	found := r.Samples[0]
	for _, s := range r.Samples {
		if s.At.After(at) {
			break
		}
		found = s
	}
	return found
}

// CarriesAgain is how long after a time a path first carries its share, over a
// window long enough not to be a burst; false when it never does.
func (r *Recording) CarriesAgain(path string, since time.Time) (time.Duration, bool) {
	const window = 200 * time.Millisecond
	for _, s := range r.Samples {
		begin := s.At.Add(-window)
		if begin.Before(since) {
			continue
		}
		if r.Rates(begin, s.At)[path] >= Carried {
			return begin.Sub(since), true
		}
	}
	return 0, false
}

// longestMove is what a move must not exceed on a busy machine; on an idle one it is a fraction
// of a second.
const longestMove = 3 * time.Second

// WaitForUse waits until just these paths of the sender's node carry a share, and
// tells how long after a time that began.
func (c *Cluster) WaitForUse(t testing.TB, r *Running, since time.Time, want ...string) {
	t.Helper()
	const window = 300 * time.Millisecond
	node, wire := c.Network.Pod(r.From).Node, &Recording{}
	for {
		if err := wire.sample(c.Network, node); err != nil {
			t.Fatal(err)
		}
		now := time.Now()
		rates := wire.Rates(now.Add(-window), now)
		settled := now.Sub(wire.Samples[0].At) >= window && slices.Equal(rates.Used(), want) && rates.Of(others(c.Paths, want)) < Carried/3
		switch took := now.Sub(since) - window; {
		case settled:
			t.Logf("%s: %v after %v", r, rates, took)
			return
		case took > longestMove:
			t.Errorf("%s: after %v the paths carry %v, and only %v should; %s", r, took, rates, want, r.describe())
			return
		}
		time.Sleep(Sampling)
	}
}

// others are the paths that are not among these.
func others(paths, some []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(path string) bool { return slices.Contains(some, path) })
}

// Now are the rates on the wire during the next second.
func (c *Cluster) Now(t testing.TB, r *Running) Rates {
	t.Helper()
	wire, begin := c.Record(c.Network.Pod(r.From).Node), time.Now()
	time.Sleep(time.Second)
	wire.Stop()
	rates := wire.Rates(begin, time.Now())
	t.Logf("%s: %v", r, rates)
	return rates
}
