// SPDX-License-Identifier: Apache-2.0

// Package traffic moves bytes over MPTCP connections and measures goodput where
// they arrive. Client and server must share a machine's clock: they do when they
// are network namespaces of it.
package traffic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Direction is the one in which the payload flows.
type Direction string

const (
	// Up is from the client (who opened the connection) to the server.
	Up Direction = "up"
	// Down is from the server to the client.
	Down Direction = "down"
)

// Options say what Run does.
type Options struct {
	// Connections is their number; 0 means 1.
	Connections int
	// Direction of the payload; empty means Up.
	Direction Direction
	// Duration is how long the sender sends.
	Duration time.Duration
	// Stop, when it is closed, ends what is sent before that.
	Stop <-chan struct{}
	// Warmup is left out at the beginning of what is measured.
	Warmup time.Duration
	// Bin is the length of a sample; 0 means 10 ms, or 100 ms for many connections.
	Bin time.Duration
	// Verify compares each byte that arrives with what was sent.
	Verify bool
	// Rewrites says that Verify lets single bytes pass, far from each other, that came
	// inverted or not at all: a box on the way changes them.
	Rewrites bool
	// Congestion is the algorithm of congestion control at both ends; empty means
	// the namespace's default.
	Congestion string
	// OfferedMbit is the rate at which each sender offers its payload, in Mbit/s; 0
	// means as fast as it goes.
	OfferedMbit float64
	// Piece is how many bytes a sender writes at a time, as fast as it goes; 0 means many.
	Piece int
	// Patience is how long, beyond the duration, a receiver waits for the rest; 0
	// means 20 s.
	Patience time.Duration
}

// Result is what Run measured, at the receiving end.
type Result struct {
	// Mbit is the goodput of all connections together, between Warmup and
	// Duration after the start, in Mbit/s.
	Mbit float64 `json:"mbit"`
	// ConnectionMbit is the same for each connection.
	ConnectionMbit []float64 `json:"connectionMbit"`
	// Bytes are all that arrived.
	Bytes int64 `json:"bytes"`
	// LongestGapMs is the longest time in which a connection received nothing.
	LongestGapMs float64 `json:"longestGapMs"`
	// LatestMs is how long after the duration the last of the streams had ended that did.
	LatestMs float64 `json:"latestMs"`
	// Multipath is true when every connection stayed an MPTCP one.
	Multipath bool `json:"multipath"`
	// Subflows are the most that a connection had at the end of its transfer, the
	// first one included.
	Subflows int `json:"subflows"`
	// Failed counts connections that broke, or delivered other bytes than were
	// sent; Errors has the first few reasons.
	Failed int      `json:"failed"`
	Errors []string `json:"errors,omitempty"`
	// Rewritten counts the bytes that Rewrites let pass.
	Rewritten int64 `json:"rewritten,omitempty"`
	// StartNs is when it began on CLOCK_MONOTONIC, in nanoseconds.
	StartNs int64 `json:"startNs"`
	// BinMs is the length of a bin and Bins the bytes that arrived in each.
	BinMs float64 `json:"binMs"`
	Bins  []int64 `json:"bins"`
}

// MbitBetween is the goodput between two times after the start, to the precision
// of the bins.
func (r *Result) MbitBetween(from, to time.Duration) float64 {
	bin := time.Duration(r.BinMs * float64(time.Millisecond))
	first, last := int(from/bin), min(int(to/bin), len(r.Bins))
	if bin == 0 || first >= int(to/bin) {
		return 0
	}
	var bytes int64
	for i := first; i < last; i++ {
		bytes += r.Bins[i]
	}
	return mbit(bytes, time.Duration(int(to/bin)-first)*bin)
}

func mbit(bytes int64, in time.Duration) float64 {
	return float64(bytes) * 8 / 1e6 / in.Seconds()
}

// ClockVariable has in the environment what is to be added to CLOCK_MONOTONIC, in nanoseconds,
// where the other end is on another machine.
const ClockVariable = "BRAID_CLOCK_OFFSET"

var clockOffset, _ = strconv.ParseInt(os.Getenv(ClockVariable), 10, 64)

// Now is the time on CLOCK_MONOTONIC in nanoseconds, which is the same in all
// processes of a machine.
func Now() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(fmt.Sprintf("reading CLOCK_MONOTONIC: %v", err)) // cannot fail
	}
	return now.Nano() + clockOffset
}

func (o *Options) setDefaults() error {
	if o.Connections == 0 {
		o.Connections = 1
	}
	if o.Direction == "" {
		o.Direction = Up
	}
	if o.Patience == 0 {
		o.Patience = patience
	}
	if o.Bin == 0 {
		o.Bin = 10 * time.Millisecond
		if o.Connections > 10 {
			o.Bin = 100 * time.Millisecond
		}
	}
	if o.Direction != Up && o.Direction != Down {
		return fmt.Errorf("direction %q: must be %q or %q", o.Direction, Up, Down)
	}
	if o.Connections < 0 || o.Bin < 0 || o.Patience < 0 || o.OfferedMbit < 0 || o.Piece < 0 || o.Warmup < 0 || o.Duration <= o.Warmup {
		return errors.New("the duration must be longer than the warm-up, and nothing negative")
	}
	return nil
}

// request is what a client sends first on each connection.
type request struct {
	Direction  Direction `json:"direction"`
	StartNs    int64     `json:"startNs"`
	WarmupNs   int64     `json:"warmupNs"`
	DurationNs int64     `json:"durationNs"`
	BinNs      int64     `json:"binNs"`
	Verify     bool      `json:"verify"`
	Rewrites   bool      `json:"rewrites,omitempty"`
	Congestion string    `json:"congestion,omitempty"`
	PatienceNs int64     `json:"patienceNs"`
	// Offered is OfferedMbit.
	Offered float64 `json:"offered,omitempty"`
	// Piece is how many bytes are written at a time.
	Piece int `json:"piece"`
	// Buffer is how much an end reads at once, in bytes.
	Buffer int `json:"buffer"`
}

func (r *request) until() time.Time {
	return time.Now().Add(time.Duration(r.StartNs + r.DurationNs - Now()))
}

func (r *request) patience() time.Duration { return time.Duration(r.PatienceNs) }

// report is what the receiving end of a connection saw.
type report struct {
	Bytes     int64   `json:"bytes"`
	Measured  int64   `json:"measured"`
	LongestNs int64   `json:"longestNs"`
	LateNs    int64   `json:"lateNs"`
	Bins      []int64 `json:"bins"`
	Rewritten int64   `json:"rewritten,omitempty"`
	Error     string  `json:"error,omitempty"`
}

// recorder fills a report.
type recorder struct {
	request
	report
	last int64
}

func (r *recorder) from() int64 { return r.StartNs + r.WarmupNs }
func (r *recorder) to() int64   { return r.StartNs + r.DurationNs }

func (r *recorder) add(now int64, bytes int) {
	r.Bytes += int64(bytes)
	if now >= r.from() && now < r.to() {
		r.Measured += int64(bytes)
	}
	r.gapUntil(now)
	r.last = now
	bin := int(max(0, now-r.StartNs) / r.BinNs)
	for len(r.Bins) <= bin {
		r.Bins = append(r.Bins, 0)
	}
	r.Bins[bin] += int64(bytes)
}

func (r *recorder) gapUntil(now int64) {
	gap := min(now, r.to()) - max(r.last, r.from())
	r.LongestNs = max(r.LongestNs, gap)
}

// payload repeats on the wire; its length is prime, so that no buffer or window
// divides it and a shifted or repeated piece is noticed.
var payload = makePayload(1_048_573)

func makePayload(size int) []byte {
	bytes := make([]byte, size)
	source := rand.NewChaCha8([32]byte{'b', 'r', 'a', 'i', 'd'})
	_, _ = source.Read(bytes) // never fails
	return bytes
}
