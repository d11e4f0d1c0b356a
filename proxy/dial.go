// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	programs "braid.dev/braid/bpf/proxy"
)

// keepAlive notices a dead end of a connection that says nothing.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: time.Minute, Interval: 15 * time.Second, Count: 5}

func networkOf(key flowKey) string {
	if clientOf(key).Addr().Is4() {
		return "tcp4"
	}
	return "tcp6"
}

func (r *relay) listener(network string) (listener net.Listener, err error) {
	config := net.ListenConfig{KeepAliveConfig: keepAlive, Control: func(_, _ string, raw syscall.RawConn) error {
		return control(raw, func(fd int) error { return transparent(network, fd) })
	}}
	config.SetMultipathTCP(false)
	err = r.do(func() (err error) {
		listener, err = config.Listen(context.Background(), network, ":0")
		return wrap("listening for clients", err)
	})
	return listener, err
}

func control(raw syscall.RawConn, f func(fd int) error) error {
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// dial opens the connection to the server from the client's own address and port.
func (r *relay) dial(ctx context.Context, key flowKey) (*net.TCPConn, error) {
	network := networkOf(key)
	dialer := net.Dialer{
		Timeout: r.proxy.options.DialTimeout, KeepAliveConfig: keepAlive, LocalAddr: net.TCPAddrFromAddrPort(clientOf(key)),
		Control: func(_, _ string, raw syscall.RawConn) error {
			return control(raw, func(fd int) error {
				reuse := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
				return errors.Join(reuse, transparent(network, fd))
			})
		},
	}
	dialer.SetMultipathTCP(true)
	var connection net.Conn
	err := r.do(func() (err error) {
		connection, err = dialer.DialContext(ctx, network, serverOf(key).String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("asking the server: %w", err)
	}
	return connection.(*net.TCPConn), nil
}

// begin asks the server of a held segment, and answers the client or lets it go on.
func (r *relay) begin(ctx context.Context, segment heldSegment) {
	r.mu.Lock()
	r.learn(segment)
	if timer := r.settling[segment.key]; timer != nil {
		timer.Stop()
		delete(r.settling, segment.key)
	}
	full := r.closed || r.held >= mostHeld || !r.proxy.memory.mayBegin(r.client.Tenant) || r.held+len(r.pending)+len(r.open) >= mostConnections
	if !full {
		r.held++
	}
	r.mu.Unlock()
	if full {
		r.untouched(segment, errBusy)
		return
	}
	go r.ask(ctx, segment)
}

func (r *relay) ask(ctx context.Context, segment heldSegment) {
	var server *net.TCPConn
	err := ctx.Err()
	r.mu.Lock()
	tenant := r.client.Tenant
	r.mu.Unlock()
	if r.proxy.dialing.begin(tenant) {
		server, err = r.dial(ctx, segment.key)
		r.proxy.dialing.end(tenant)
	} else {
		err = errors.Join(err, errBusy)
	}
	if err == nil {
		err = r.answer(segment, server)
	}
	r.mu.Lock()
	r.held--
	r.mu.Unlock()
	if err != nil {
		r.untouched(segment, err)
	}
}

// untouched has a connection go on as the client's own.
func (r *relay) untouched(segment heldSegment, why error) {
	r.proxy.options.Log.V(1).Info("A connection goes on untouched", "client", clientOf(segment.key), "server", serverOf(segment.key), "reason", why.Error())
	r.proxy.outcomes.untouched(why)
	r.pass(segment)
}

// learn notes how the client's frames begin. The caller holds mu.
func (r *relay) learn(segment heldSegment) {
	if r.facts.Ethernet == segment.ethernet() || r.closed {
		return
	}
	r.facts.Ethernet = segment.ethernet()
	if err := r.proxy.from.Relays.Put(uint32(r.outside), r.facts); err != nil {
		r.proxy.options.Log.Error(err, "failed to note the addresses of a client's frames")
	}
}

// answer has the relay answer the client, whose server has answered.
func (r *relay) answer(segment heldSegment, server *net.TCPConn) error {
	if multipath, err := server.MultipathTCP(); err != nil || !multipath {
		r.leaveAlone(segment.key)
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		abort(server)
		return errors.New("the relay is closed")
	}
	r.pending[segment.key] = server
	r.mu.Unlock()
	if err := r.proxy.from.RelayedFlows.Put(segment.key, programs.FromClientRelayed{State: programs.RelayedOpen}); err != nil {
		abort(r.take(segment.key))
		return fmt.Errorf("leading a client to its relay: %w", err)
	}
	copy(segment.frame, relayEthernet)
	if err := r.toRelay.send(segment); err != nil {
		abort(r.take(segment.key))
		return err
	}
	time.AfterFunc(patience, func() { r.giveUp(segment.key, server) })
	return nil
}

// leaveAlone has the next connections to a server that speaks no MPTCP go on untouched.
func (r *relay) leaveAlone(key flowKey) {
	peer := programs.FromClientPeer{Port: uint32(key.ServerPort)}
	peer.Address.Word = key.Server.Word
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
		_ = r.proxy.from.PlainPeers.Put(peer, uint64(now.Nano()+int64(r.proxy.options.PlainFor)))
	}
}

// take is the server that waits for its client.
func (r *relay) take(key flowKey) *net.TCPConn {
	r.mu.Lock()
	defer r.mu.Unlock()
	server := r.pending[key]
	delete(r.pending, key)
	return server
}

// giveUp resets a server whose client never acknowledged.
func (r *relay) giveUp(key flowKey, server *net.TCPConn) {
	r.mu.Lock()
	waits := r.pending[key] == server
	r.mu.Unlock()
	if waits {
		abort(r.take(key))
		r.settle(key, programs.RelayedEnded)
	}
}

// pass lets a connection be the client's own, whose server then answers for itself.
func (r *relay) pass(segment heldSegment) {
	r.settle(segment.key, programs.RelayedPasses)
	if err := r.toNode.send(segment); err != nil {
		r.proxy.options.Log.Error(err, "failed to let a connection go on; its client tries again")
	}
}

// settle leaves an entry for what comes late, and has it go by itself.
func (r *relay) settle(key flowKey, state uint32) {
	flows := r.proxy.from.RelayedFlows
	if err := flows.Update(key, programs.FromClientRelayed{State: state}, ebpf.UpdateExist); err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || state == programs.RelayedPasses && len(r.settling) >= mostUntouched {
		_ = flows.Delete(key)
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(linger, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.settling[key] == timer {
			delete(r.settling, key)
			_ = flows.Delete(key)
		}
	})
	r.settling[key] = timer
}

// accept takes clients whose servers have answered.
func (r *relay) accept(listener net.Listener) {
	for {
		accepted, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // as out of descriptors
			continue
		}
		client := accepted.(*net.TCPConn)
		key := keyOf(bpfEnd(client.RemoteAddr()), bpfEnd(client.LocalAddr()), r.client.Interface)
		if server := r.take(key); server != nil {
			r.join(key, client, server)
			continue
		}
		abort(client)
	}
}
