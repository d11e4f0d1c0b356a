// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Route is from where and to which server a transfer goes.
type Route struct {
	From *network.Namespace
	To   string
	// SendBuffer is that of each connection in bytes; 0 leaves it as it is.
	SendBuffer int
	// Protocol is that of the connections.
	Protocol network.Protocol
}

func (r Route) dial(ctx context.Context) (*net.TCPConn, error) {
	dialed, err := r.From.DialBy(ctx, r.Protocol, "tcp", r.To)
	if err != nil {
		return nil, err
	}
	connection := dialed.(*net.TCPConn)
	if r.SendBuffer > 0 {
		err = connection.SetWriteBuffer(r.SendBuffer)
	}
	return connection, err
}

// Transfer runs a transfer to its end.
func (r Route) Transfer(ctx context.Context, options traffic.Options) (*traffic.Result, error) {
	running, err := r.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	return running.End()
}

// Running is a transfer that goes on.
type Running struct {
	// Connection is the first one.
	Connection *net.TCPConn
	done       chan error
	result     *traffic.Result
	cancel     context.CancelFunc
}

// Start begins a transfer, and returns when all its connections are open.
func (r Route) Start(ctx context.Context, options traffic.Options) (*Running, error) {
	ctx, cancel := context.WithTimeout(ctx, options.Duration+options.Patience+time.Minute)
	t := &Running{done: make(chan error, 1), cancel: cancel}
	opened, left := make(chan struct{}), max(1, options.Connections)
	dial := func(ctx context.Context) (net.Conn, error) {
		connection, err := r.dial(ctx)
		if err != nil {
			return nil, err
		}
		if t.Connection == nil {
			t.Connection = connection
		}
		if left--; left == 0 {
			close(opened)
		}
		return connection, nil
	}
	go func() {
		var err error
		t.result, err = traffic.Run(ctx, dial, options)
		t.done <- err
	}()
	select {
	case <-opened:
		return t, nil
	case err := <-t.done:
		cancel()
		return nil, fmt.Errorf("beginning a transfer: %w", err)
	}
}

// End waits for the transfer's end.
func (t *Running) End() (*traffic.Result, error) {
	defer t.cancel()
	if err := <-t.done; err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	return t.result, nil
}

// EndIntact is the same, and fails unless all connections ended well as MPTCP ones.
func (t *Running) EndIntact() (*traffic.Result, error) {
	result, err := t.End()
	if err != nil {
		return nil, err
	}
	return result, Intact(result)
}

// Stop ends the transfer with what is still under way, however long it would take.
func (t *Running) Stop() error {
	t.cancel()
	if err := <-t.done; err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// Why tells what ended the transfer, if it has ended.
func (t *Running) Why(err error) error {
	select {
	case ended := <-t.done:
		if ended == nil {
			ended = Intact(t.result)
		}
		return errors.Join(err, ended)
	default:
		return err
	}
}

// Intact is an error unless all connections ended well as MPTCP ones.
func Intact(result *traffic.Result) error {
	if result.Failed > 0 || !result.Multipath {
		return fmt.Errorf("a connection broke or was not MPTCP: %s", strings.Join(result.Errors, "; "))
	}
	return nil
}

// WaitForSubflows waits until the first connection has so many.
func (t *Running) WaitForSubflows(ctx context.Context, count int) error {
	return Until(ctx, 10*time.Second, fmt.Sprintf("the connection has %d subflows", count), func() (bool, error) {
		subflows, err := traffic.Subflows(t.Connection)
		return len(subflows) == count, err
	})
}

// Reset resets the subflow of a pod that has a local end, as the network might.
func Reset(pod *network.Pod, local netip.AddrPort) error {
	_, err := pod.Run("ss", "--kill", "--tcp", "sport", "=", ":"+strconv.Itoa(int(local.Port())))
	return err
}

// Rates are the goodputs of the subflows over a time, in Mbit/s, by their local ends.
func (t *Running) Rates(over time.Duration) (map[netip.AddrPort]float64, error) {
	before, begun, err := t.sent()
	if err != nil {
		return nil, err
	}
	time.Sleep(over)
	after, ended, err := t.sent()
	for end := range after {
		after[end] = (after[end] - before[end]) * 8 / 1e6 / ended.Sub(begun).Seconds()
	}
	return after, err
}

// sent is the payload of each subflow so far.
func (t *Running) sent() (map[netip.AddrPort]float64, time.Time, error) {
	subflows, err := traffic.Subflows(t.Connection)
	if err != nil {
		return nil, time.Time{}, t.Why(err)
	}
	sent := make(map[netip.AddrPort]float64, len(subflows))
	for _, subflow := range subflows {
		sent[subflow.Local] = float64(max(subflow.Sent, subflow.Received))
	}
	return sent, time.Now(), nil
}

// Until asks again until something holds; it fails after the patience.
func Until(ctx context.Context, patience time.Duration, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not so within %s", patience))
	defer cancel()
	for {
		if ok, err := holds(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, context.Cause(ctx))
		case <-time.After(min(patience/1000, 100*time.Millisecond)):
		}
	}
}
