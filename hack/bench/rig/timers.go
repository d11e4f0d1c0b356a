// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Timer runs a transfer by plain TCP on a path that nothing happens to, and returns how
// long the sender's retransmission timer is, in ms, the median over all of it but a second
// at the beginning. So long TCP waits by itself before it repeats what nobody answers.
func (r Route) Timer(ctx context.Context, options traffic.Options) (float64, error) {
	r.Protocol = network.TCP
	running, err := r.Start(ctx, options)
	if err != nil {
		return 0, err
	}
	var timers []float64
	ends := time.Now().Add(options.Duration - 100*time.Millisecond)
	time.Sleep(time.Second)
	for time.Now().Before(ends) && err == nil {
		var timer float64
		timer, err = timerOf(running.Connection)
		timers = append(timers, timer)
		time.Sleep(50 * time.Millisecond)
	}
	result, endErr := running.End()
	if err = errors.Join(err, endErr); err != nil {
		return 0, err
	}
	if result.Multipath || len(timers) == 0 {
		return 0, fmt.Errorf("no timer of plain TCP was read: %d times, MPTCP %t", len(timers), result.Multipath)
	}
	return Median(timers), nil
}

// timerOf is a socket's retransmission timer in ms.
func timerOf(connection *net.TCPConn) (float64, error) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("reaching the socket: %w", err)
	}
	var info *unix.TCPInfo
	var failed error
	err = raw.Control(func(fd uintptr) { info, failed = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) })
	if err = errors.Join(err, failed); err != nil {
		return 0, fmt.Errorf("reading TCP_INFO: %w", err)
	}
	return float64(info.Rto) / 1000, nil
}
