// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// DialFunc opens one connection to a server.
type DialFunc func(context.Context) (net.Conn, error)

// Dial returns a DialFunc for MPTCP connections to an address and port.
func Dial(address string) DialFunc {
	var dialer net.Dialer
	dialer.SetMultipathTCP(true)
	return func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", address) }
}

// DialPlain returns a DialFunc for plain TCP connections.
func DialPlain(address string) DialFunc {
	var dialer net.Dialer
	dialer.SetMultipathTCP(false)
	return func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", address) }
}

// WithSendBuffer has each connection hold so many bytes at most that are to be sent.
func (dial DialFunc) WithSendBuffer(bytes int) DialFunc {
	return func(ctx context.Context) (net.Conn, error) {
		connection, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		if err := connection.(*net.TCPConn).SetWriteBuffer(bytes); err != nil {
			return nil, errors.Join(fmt.Errorf("setting a send buffer: %w", err), connection.Close())
		}
		return connection, nil
	}
}

// Run opens connections, moves bytes over them for the wanted time, and returns
// what arrived. A connection that breaks on the way is counted in the result;
// one that cannot be opened is an error.
func Run(ctx context.Context, dial DialFunc, options Options) (*Result, error) {
	if err := options.setDefaults(); err != nil {
		return nil, err
	}
	connections, err := open(ctx, dial, options.Connections)
	defer closeAll(connections)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { closeAll(connections) })
	defer stop()
	wanted := options.request()
	outcomes := make([]outcome, len(connections))
	var running sync.WaitGroup
	for i, connection := range connections {
		running.Go(func() { outcomes[i] = transfer(connection, wanted, options.Stop) })
	}
	running.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("moving bytes: %w", err)
	}
	return wanted.result(outcomes), nil
}

func (o *Options) request() *request {
	return &request{
		Direction:  o.Direction,
		StartNs:    Now(),
		WarmupNs:   o.Warmup.Nanoseconds(),
		DurationNs: o.Duration.Nanoseconds(),
		BinNs:      o.Bin.Nanoseconds(),
		Verify:     o.Verify,
		Rewrites:   o.Rewrites,
		Congestion: o.Congestion,
		PatienceNs: o.Patience.Nanoseconds(),
		Offered:    o.OfferedMbit,
		Piece:      cmp.Or(o.Piece, len(payload)),
		Buffer:     max(16<<10, min(512<<10, (32<<20)/o.Connections)),
	}
}

func open(ctx context.Context, dial DialFunc, count int) (connections []*net.TCPConn, err error) {
	for range count {
		connection, err := dial(ctx)
		if err != nil {
			return connections, fmt.Errorf("opening connection %d of %d: %w", len(connections)+1, count, err)
		}
		connections = append(connections, connection.(*net.TCPConn))
	}
	return connections, nil
}

func closeAll(connections []*net.TCPConn) {
	for _, connection := range connections {
		_ = connection.Close()
	}
}

// outcome is what became of one connection.
type outcome struct {
	report
	subflows  int
	multipath bool
}

func transfer(connection *net.TCPConn, wanted *request, stop <-chan struct{}) (result outcome) {
	observed, ended, stopped := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(observed)
		// Shortly before the end, when all subflows are there and none is closing.
		select {
		case <-time.After(time.Until(wanted.until()) - 50*time.Millisecond):
		case <-stop:
			defer close(stopped)
		case <-ended:
		}
		result.subflows, result.multipath = observe(connection)
	}()
	report, err := exchange(connection, wanted, stopped)
	close(ended)
	<-observed
	if report != nil {
		result.report = *report
	}
	if err != nil {
		result.Error = err.Error()
	}
	return result
}

func exchange(connection *net.TCPConn, wanted *request, stop <-chan struct{}) (*report, error) {
	if err := setCongestion(connection, wanted.Congestion); err != nil {
		return nil, err
	}
	if err := writeMessage(connection, wanted); err != nil {
		return nil, err
	}
	if wanted.Direction == Down {
		defer onceStopped(stop, func() { _ = connection.CloseWrite() })() // which tells the server to
		return receive(connection, wanted), nil
	}
	if err := send(connection, wanted, stop); err != nil {
		return nil, err
	}
	var answer report
	if err := connection.SetReadDeadline(time.Now().Add(2 * wanted.patience())); err != nil {
		return nil, fmt.Errorf("setting a deadline: %w", err)
	}
	err := readMessage(connection, &answer)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the server ended the connection: %w", err)
	}
	return &answer, err
}

const mostErrors = 5

func (r *request) result(outcomes []outcome) *Result {
	measured := time.Duration(r.DurationNs - r.WarmupNs)
	result := &Result{Multipath: true, StartNs: r.StartNs, BinMs: float64(r.BinNs) / 1e6}
	for _, outcome := range outcomes {
		rate := mbit(outcome.Measured, measured)
		result.Mbit += rate
		result.ConnectionMbit = append(result.ConnectionMbit, rate)
		result.Bytes += outcome.Bytes
		result.Rewritten += outcome.Rewritten
		result.LongestGapMs = max(result.LongestGapMs, float64(outcome.LongestNs)/1e6)
		result.LatestMs = max(result.LatestMs, float64(outcome.LateNs)/1e6)
		result.Multipath = result.Multipath && outcome.multipath
		result.Subflows = max(result.Subflows, outcome.subflows)
		result.addBins(outcome.Bins)
		result.addError(outcome.Error)
	}
	return result
}

func (r *Result) addBins(bins []int64) {
	for i, bytes := range bins {
		if i == len(r.Bins) {
			r.Bins = append(r.Bins, 0)
		}
		r.Bins[i] += bytes
	}
}

func (r *Result) addError(text string) {
	if text == "" {
		return
	}
	r.Failed++
	if len(r.Errors) < mostErrors {
		r.Errors = append(r.Errors, text)
	}
}
