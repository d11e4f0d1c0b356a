// SPDX-License-Identifier: Apache-2.0

// Package incasttest has many pods send to one at the same time, and tells how that went.
package incasttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"braid.dev/braid/internal/lab/network"
)

// Options of Run.
type Options struct {
	Senders  []*network.Pod
	Receiver *network.Pod
	// Version of IP, 4 or 6; 0 means 4.
	Version  int
	Protocol network.Protocol
	// Flows are dealt out to the senders in turn.
	Flows int
	// Bytes of each flow; 0 for as many as go in Duration.
	Bytes    int
	Duration time.Duration
	// Echo has the receiver send back all that comes, at the same time.
	Echo bool
}

// Result of a run.
type Result struct {
	// Flows are how long each one took, from the common beginning to the receiver's word
	// that all is there, and the bytes that arrived.
	Flows []Flow
	// Sent are all segments of the senders, and Retransmitted those among them that were
	// sent again, by the kernel's counters.
	Sent, Retransmitted float64
}

// Flow is what became of one.
type Flow struct {
	Took  time.Duration
	Bytes int64
}

// RetransmittedShare is that of all segments, in percent.
func (r *Result) RetransmittedShare() float64 { return 100 * r.Retransmitted / max(r.Sent, 1) }

// Slowest is how long the slowest flow took.
func (r *Result) Slowest() (slowest time.Duration) {
	for _, flow := range r.Flows {
		slowest = max(slowest, flow.Took)
	}
	return slowest
}

// Mbit is the goodput of all flows, until the slowest ended.
func (r *Result) Mbit() float64 {
	bytes := int64(0)
	for _, flow := range r.Flows {
		bytes += flow.Bytes
	}
	return float64(bytes) * 8 / 1e6 / r.Slowest().Seconds()
}

// Jain is Jain's index of the flows' bytes: 1 where all have the same, 1/n where one of n
// has everything.
func (r *Result) Jain() float64 {
	sum, squares := 0.0, 0.0
	for _, flow := range r.Flows {
		sum += float64(flow.Bytes)
		squares += float64(flow.Bytes) * float64(flow.Bytes)
	}
	return sum * sum / (float64(len(r.Flows)) * max(squares, 1))
}

// Run has all flows begin at once, and waits for their end.
func Run(ctx context.Context, options Options) (*Result, error) {
	listener, err := options.Receiver.Listen(ctx, "tcp", net.JoinHostPort(options.address(), "0"))
	if err != nil {
		return nil, err
	}
	var receiving sync.WaitGroup
	receiving.Go(func() { options.receive(listener, &receiving) })
	result := &Result{Flows: make([]Flow, options.Flows)}
	sent, retransmitted, err := options.counters()
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	failed := options.sendAll(ctx, listener.Addr().String(), result.Flows)
	result.Sent, result.Retransmitted, err = options.counters()
	result.Sent -= sent
	result.Retransmitted -= retransmitted
	failed = errors.Join(failed, err, listener.Close())
	receiving.Wait()
	return result, failed
}

func (o *Options) address() string {
	if o.Version == 6 {
		return o.Receiver.IPv6
	}
	return o.Receiver.IPv4
}

// receive takes what comes, and says of each connection that all is there by ending it.
func (o *Options) receive(listener net.Listener, receiving *sync.WaitGroup) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		receiving.Go(func() {
			to := io.Discard
			if o.Echo {
				to = connection
			}
			_, _ = io.Copy(to, connection)
			_ = connection.Close()
		})
	}
}

func (o *Options) sendAll(ctx context.Context, to string, flows []Flow) error {
	var sending sync.WaitGroup
	failures := make([]error, len(flows))
	begin := make(chan struct{})
	var began time.Time
	for i := range flows {
		sending.Go(func() {
			<-begin
			bytes, err := o.send(ctx, o.Senders[i%len(o.Senders)], to, began)
			flows[i], failures[i] = Flow{Took: time.Since(began), Bytes: bytes}, err
		})
	}
	began = time.Now()
	close(begin)
	sending.Wait()
	return errors.Join(failures...)
}

// send returns what arrived.
func (o *Options) send(ctx context.Context, from *network.Pod, to string, began time.Time) (sent int64, err error) {
	connection, err := from.DialBy(ctx, o.Protocol, "tcp", to)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := io.Copy(io.Discard, connection)
		ended <- err
	}()
	block := make([]byte, 64<<10)
	for (o.Bytes > 0 && sent < int64(o.Bytes)) || (o.Bytes == 0 && time.Since(began) < o.Duration) {
		next := block
		if left := o.Bytes - int(sent); o.Bytes > 0 && left < len(block) {
			next = block[:left]
		}
		n, err := connection.Write(next)
		sent += int64(n)
		if err != nil {
			return sent, fmt.Errorf("sending: %w", err)
		}
	}
	if err := connection.(*net.TCPConn).CloseWrite(); err != nil {
		return sent, fmt.Errorf("ending what is sent: %w", err)
	}
	return sent, <-ended
}

// counters are the segments that all senders sent, and sent again.
func (o *Options) counters() (sent, retransmitted float64, err error) {
	for _, sender := range o.Senders {
		var table []byte
		err := sender.Do(func() (err error) {
			table, err = os.ReadFile("/proc/thread-self/net/snmp")
			return err
		})
		if err != nil {
			return 0, 0, fmt.Errorf("reading the counters of %s: %w", sender.Name, err)
		}
		counter := tcpCounters(string(table))
		sent += counter["OutSegs"]
		retransmitted += counter["RetransSegs"]
	}
	return sent, retransmitted, nil
}

// tcpCounters reads the two lines of TCP: names, and values.
func tcpCounters(table string) map[string]float64 {
	counters := map[string]float64{}
	var names []string
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "Tcp:" {
			continue
		}
		if names == nil {
			names = fields
			continue
		}
		for i, field := range fields[1:] {
			var value float64
			if _, err := fmt.Sscan(field, &value); err == nil {
				counters[names[i+1]] = value
			}
		}
	}
	return counters
}
