// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	programs "braid.dev/braid/bpf/proxy"
)

func bpfEnd(address net.Addr) netip.AddrPort {
	end := address.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(end.Addr().Unmap(), end.Port())
}

// connection has both ends.
type connection struct {
	relay          *relay
	key            flowKey
	client, server *net.TCPConn
	ending         sync.Once
	carried        atomic.Int64 // bytes of buffers with what is carried just now
}

// join relays between both from now on.
func (r *relay) join(key flowKey, client, server *net.TCPConn) {
	c := &connection{relay: r, key: key, client: client, server: server}
	// Should the process die, the client is told by a reset, and takes nothing for whole.
	_ = client.SetLinger(0)
	r.mu.Lock()
	closed := r.closed
	if !closed {
		r.open[c] = struct{}{}
	}
	r.mu.Unlock()
	if closed {
		c.abort()
		return
	}
	r.proxy.outcomes.relayed.Add(1)
	go c.run()
}

// run returns when both directions have ended, or one end was reset.
func (c *connection) run() {
	var both sync.WaitGroup
	whole := [2]bool{}
	for i, way := range [2][2]*net.TCPConn{{c.server, c.client}, {c.client, c.server}} {
		both.Go(func() {
			if whole[i] = c.carry(way[0], way[1]) == nil; !whole[i] {
				c.abort()
			}
		})
	}
	both.Wait()
	if whole[0] && whole[1] {
		// Only what has arrived survives the end of this process.
		awaitSent(c.client)
		awaitSent(c.server)
		_ = c.client.SetLinger(-1)
	}
	_ = c.client.Close()
	_ = c.server.Close()
	c.relay.mu.Lock()
	delete(c.relay.open, c)
	c.relay.mu.Unlock()
	c.relay.settle(c.key, programs.RelayedEnded)
}

// longestWait is how long an end may take to acknowledge the last of what it was sent.
const longestWait = 2 * time.Minute

// awaitSent waits until an end has acknowledged everything, or the connection is over.
func awaitSent(connection *net.TCPConn) {
	raw, err := connection.SyscallConn()
	if err != nil {
		return
	}
	pause := time.Millisecond
	for until := time.Now().Add(longestWait); time.Now().Before(until); time.Sleep(pause) {
		var left int
		var failed error
		err := raw.Control(func(fd uintptr) { left, failed = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || failed != nil || left == 0 {
			return
		}
		pause = min(2*pause, 200*time.Millisecond)
	}
}

// abort resets both ends.
func (c *connection) abort() {
	c.ending.Do(func() {
		abort(c.client)
		abort(c.server)
	})
}

// abort resets a connection. MPTCP does so where a socket is disconnected, and not for one
// that does not linger.
func abort(connection *net.TCPConn) {
	if connection == nil {
		return
	}
	_ = connection.SetLinger(0)
	if raw, err := connection.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { disconnect(int(fd)) })
	}
	_ = connection.Close()
}

// disconnect is connect with AF_UNSPEC.
func disconnect(fd int) {
	address := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_ = connectRaw(fd, &address)
}

const bufferSize = 256 << 10

// buffers are taken only while there is something to carry: connections that say nothing
// have none.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// carry moves what one end sends to the other one until it has sent all; then that end is
// told so.
func (c *connection) carry(to, from *net.TCPConn) error {
	for {
		buffer, n, err := receive(from)
		if err != nil {
			return err
		}
		if n > 0 {
			c.carried.Add(bufferSize)
			_, err = to.Write(buffer[:n])
			c.carried.Add(-bufferSize)
		}
		buffers.Put(buffer)
		if err != nil {
			return err
		}
		if n == 0 {
			return to.CloseWrite()
		}
	}
}

// receive waits until there is something, or the end, and only then takes a buffer.
func receive(from *net.TCPConn) (buffer *[bufferSize]byte, n int, err error) {
	raw, err := from.SyscallConn()
	if err != nil {
		return nil, 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		buffer = buffers.Get().(*[bufferSize]byte)
		for n, failed = unix.Read(int(fd), buffer[:]); errors.Is(failed, unix.EINTR); {
			n, failed = unix.Read(int(fd), buffer[:])
		}
		if errors.Is(failed, unix.EAGAIN) {
			buffers.Put(buffer)
			return false
		}
		return true
	})
	return buffer, n, errors.Join(err, failed)
}

func connectRaw(fd int, address *unix.RawSockaddr) error {
	_, _, failed := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(address)), unsafe.Sizeof(*address))
	if failed != 0 {
		return failed
	}
	return nil
}
