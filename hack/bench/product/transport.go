// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// What the pods ask of each other, and how far their server is.
const (
	askedMbit      = 20
	askedTimeout   = 7 * time.Second
	askedWindow    = 80
	farRoundTrip   = 100 * time.Millisecond
	shortFlowBytes = 100_000
	transportPort  = "7001"

	acceptsRequests = `, accept: {from: ["0.0.0.0/0"], maxInitialWindow: 80, maxUserTimeout: 1m, minRate: 1M}}`
)

// measureTransport tells what requests of a receiver do at its peer.
func measureTransport(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	near := func(l *rig.Lab) error {
		for range m.Trials {
			if err := errors.Join(measureCap(ctx, m, l), measureUserTimeout(ctx, m, l)); err != nil {
				return err
			}
		}
		return nil
	}
	far := func(l *rig.Lab) error {
		for range m.Trials {
			if err := measureInitialWindow(ctx, m, l); err != nil {
				return err
			}
		}
		return nil
	}
	delays := map[string]time.Duration{rig.Paths[0]: farRoundTrip / 2}
	return errors.Join(
		rig.Use(ctx, rig.LabOver(2), near),
		rig.Use(ctx, rig.LabOn(network.Spec{Paths: rig.Paths[:1], PathDelays: delays}), far),
	)
}

// measureCap asks for a rate on one of two paths, and compares with the same without.
func measureCap(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	if err := l.Spread(ctx, ""); err != nil {
		return err
	}
	own, err := receivedByPath(ctx, l)
	if err != nil {
		return err
	}
	asks := fmt.Sprintf("transport: {request: {rates: [{path: %s, rate: %dM}]}", rig.Paths[1], askedMbit)
	if err := l.SpreadWith(ctx, asks+acceptsRequests); err != nil {
		return err
	}
	capped, err := receivedByPath(ctx, l)
	if err != nil {
		return err
	}
	m.Add("transport.cap.err_pct", 100*math.Abs(capped[rig.Paths[1]]/askedMbit-1))
	m.Add("transport.cap.other_ratio", capped[rig.Paths[0]]/own[rig.Paths[0]])
	return nil
}

// receivedByPath is the goodput of each of two subflows, in Mbit/s, once the first seconds,
// in which no rate holds, are over. Of both the NICs say which is on which path.
func receivedByPath(ctx context.Context, l *rig.Lab) (map[string]float64, error) {
	running, err := l.Route(4).Start(ctx, traffic.Options{Direction: traffic.Down, Duration: 9 * time.Second})
	if err != nil {
		return nil, err
	}
	if err := running.WaitForSubflows(ctx, 2); err != nil {
		return nil, errors.Join(err, running.Stop())
	}
	time.Sleep(4 * time.Second)
	before, err := l.Network.NICCounters(l.Receiver.Node)
	rates, ratesErr := running.Rates(3 * time.Second)
	after, afterErr := l.Network.NICCounters(l.Receiver.Node)
	_, endErr := running.EndIntact()
	if err := errors.Join(err, ratesErr, afterErr, endErr); err != nil {
		return nil, err
	}
	var goodputs []float64
	for _, rate := range rates {
		goodputs = append(goodputs, rate)
	}
	slices.Sort(goodputs)
	paths := slices.Clone(rig.Paths[:2])
	slices.SortFunc(paths, func(a, b string) int {
		return int(after[a].TxBytes-before[a].TxBytes) - int(after[b].TxBytes-before[b].TxBytes)
	})
	return map[string]float64{paths[0]: goodputs[0], paths[1]: goodputs[1]}, nil
}

// measureUserTimeout asks for a user timeout, cuts all paths, and sees when the server gives up.
func measureUserTimeout(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	asks := fmt.Sprintf("transport: {request: {userTimeout: %s}", askedTimeout)
	if err := l.SpreadWith(ctx, asks+acceptsRequests); err != nil {
		return err
	}
	client, server, err := connectionOf(ctx, l)
	if err != nil {
		return err
	}
	defer client.Close()
	defer server.Close()
	if err := rig.Until(ctx, 20*time.Second, "the server has the user timeout", func() (bool, error) {
		return hasUserTimeout(client, server)
	}); err != nil {
		return err
	}
	block := func(blocked bool) (failed error) {
		for _, path := range l.Network.Spec.Paths {
			failed = errors.Join(failed, l.Network.Block(l.Sender.Node, path, blocked))
		}
		return failed
	}
	took, err := givesUpAfter(server, block)
	if err = errors.Join(err, block(false)); err != nil {
		return err
	}
	m.Add("transport.user_timeout.err_s", math.Abs((took - askedTimeout).Seconds()))
	return nil
}

// connectionOf is a connection of plain TCP from the sender to the receiver, both ends of it.
func connectionOf(ctx context.Context, l *rig.Lab) (client, server net.Conn, err error) {
	address := net.JoinHostPort(l.Receiver.IPv4, transportPort)
	listener, err := l.Receiver.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, nil, fmt.Errorf("listening in the receiver: %w", err)
	}
	defer listener.Close()
	if client, err = l.Sender.DialBy(ctx, network.TCP, "tcp", address); err != nil {
		return nil, nil, fmt.Errorf("connecting to the receiver: %w", err)
	}
	if server, err = listener.Accept(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("accepting a connection: %w", err), client.Close())
	}
	return client, server, nil
}

// hasUserTimeout lets the client acknowledge something, and tells whether the server's
// socket has what it asks for.
func hasUserTimeout(client, server net.Conn) (has bool, err error) {
	const some = 10_000
	if _, err := server.Write(make([]byte, some)); err != nil {
		return false, fmt.Errorf("sending from the server: %w", err)
	}
	if _, err := io.ReadFull(client, make([]byte, some)); err != nil {
		return false, fmt.Errorf("receiving at the client: %w", err)
	}
	raw, err := server.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false, fmt.Errorf("reading the server's user timeout: %w", err)
	}
	var got int
	var failed error
	err = raw.Control(func(fd uintptr) { got, failed = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) })
	return time.Duration(got)*time.Millisecond == askedTimeout, errors.Join(err, failed)
}

// givesUpAfter sends into paths that are cut, and returns after how long the kernel gave up.
func givesUpAfter(server net.Conn, block func(bool) error) (time.Duration, error) {
	if err := block(true); err != nil {
		return 0, err
	}
	if err := server.SetReadDeadline(time.Now().Add(5 * askedTimeout)); err != nil {
		return 0, fmt.Errorf("setting a deadline: %w", err)
	}
	begun := time.Now()
	if _, err := server.Write([]byte("x")); err != nil {
		return 0, fmt.Errorf("sending from the server: %w", err)
	}
	_, err := server.Read(make([]byte, 1))
	if !errors.Is(err, unix.ETIMEDOUT) {
		return 0, errors.Join(errors.New("the server's connection did not time out"), err)
	}
	return time.Since(begun), nil
}

// measureInitialWindow has short flows come from afar, with a window that is asked for and
// without, each by TCP and MPTCP.
func measureInitialWindow(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	protocols := map[string]network.Protocol{"tcp": network.TCP, "mptcp": network.MPTCP}
	asks := fmt.Sprintf("transport: {receiveBuffer: 1Mi, request: {initialWindow: %d}", askedWindow)
	for name, fields := range map[string]string{"": asks + acceptsRequests, "without_": ""} {
		if err := l.SpreadWith(ctx, fields); err != nil {
			return err
		}
		for of, protocol := range protocols {
			took, err := shortFlow(ctx, l, protocol)
			if err != nil {
				return err
			}
			m.Add("transport.iw."+name+of+"_ms", took)
			if name == "" {
				m.Add("transport.iw.ms", took)
			}
		}
	}
	return nil
}

// shortFlow is how long one takes from when its connection is established, in ms.
func shortFlow(ctx context.Context, l *rig.Lab, protocol network.Protocol) (float64, error) {
	address := net.JoinHostPort(l.Receiver.IPv4, transportPort)
	listener, err := l.Receiver.Listen(ctx, "tcp", address)
	if err != nil {
		return 0, fmt.Errorf("listening in the receiver: %w", err)
	}
	defer listener.Close()
	go func() {
		if connection, err := listener.Accept(); err == nil {
			_, _ = connection.Write(make([]byte, shortFlowBytes)) // what is missing is seen at the client
			_ = connection.Close()
		}
	}()
	client, err := l.Sender.DialBy(ctx, protocol, "tcp", address)
	if err != nil {
		return 0, fmt.Errorf("connecting to the receiver: %w", err)
	}
	defer client.Close()
	begun := time.Now()
	received, err := io.Copy(io.Discard, client)
	if err != nil || received != shortFlowBytes {
		return 0, errors.Join(fmt.Errorf("received %d bytes of %d", received, shortFlowBytes), err)
	}
	return float64(time.Since(begun).Microseconds()) / 1000, nil
}
