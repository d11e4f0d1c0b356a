// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"net"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf"
)

// frames sends whole frames out of one interface.
type frames struct{ socket, index int }

// openFrames opens the ways for held segments: into the relay's namespace, where it answers
// them, and out of it, as though its client sent them just now.
func (r *relay) openFrames() error {
	err := r.proxy.inNode(func() (err error) { r.toRelay, err = newFrames(r.outside); return err })
	if err != nil {
		return err
	}
	return r.do(func() (err error) { r.toNode, err = newFrames(r.inside); return err })
}

func newFrames(index int) (*frames, error) {
	socket, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening a packet socket: %w", err)
	}
	return &frames{socket, index}, nil
}

func (f *frames) send(segment heldSegment) error {
	to := &unix.SockaddrLinklayer{Protocol: bpf.Port(segment.protocol()), Ifindex: f.index, Halen: 6}
	if err := unix.Sendto(f.socket, segment.frame, 0, to); err != nil {
		return fmt.Errorf("sending a held segment: %w", err)
	}
	return nil
}

func (f *frames) close() error { return unix.Close(f.socket) }

// transparent lets a socket have an address that is its namespace's only on the way in.
func transparent(network string, fd int) error {
	if network == "tcp6" {
		return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1)
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1)
}

// register puts a listener's socket into the map that the look-up has.
func register(listeners *ebpf.Map, number uint32, listener net.Listener) error {
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		return fmt.Errorf("reaching a listener's socket: %w", err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = listeners.Put(number, uint64(fd)) }); err != nil {
		return fmt.Errorf("reaching a listener's socket: %w", err)
	}
	return wrap("registering a listener", failed)
}
