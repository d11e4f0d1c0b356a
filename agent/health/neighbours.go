// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// neighbours tells of addresses that the kernel cannot resolve. What it misses,
// probes find out.
type neighbours struct {
	fd     int
	buffer []byte
}

// openNeighbours listens in the calling thread's network namespace.
func openNeighbours() (neighbours, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return neighbours{fd: -1}, fmt.Errorf("opening rtnetlink: %w", err)
	}
	address := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.RTNLGRP_NEIGH - 1)}
	if err := unix.Bind(fd, address); err != nil {
		return neighbours{fd: -1}, errors.Join(fmt.Errorf("watching neighbours: %w", err), unix.Close(fd))
	}
	return neighbours{fd: fd, buffer: make([]byte, 64<<10)}, nil
}

func (n neighbours) close() error { return unix.Close(n.fd) }

// eachFailed calls visit for each that failed since the last call.
func (n neighbours) eachFailed(visit func(nic int, address netip.Addr)) {
	for {
		length, from, err := unix.Recvfrom(n.fd, n.buffer, 0)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOBUFS) {
			continue
		}
		if err != nil {
			return
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		messages, err := syscall.ParseNetlinkMessage(n.buffer[:length])
		if err != nil {
			continue
		}
		for _, message := range messages {
			visitFailed(message, visit)
		}
	}
}

func visitFailed(message syscall.NetlinkMessage, visit func(nic int, address netip.Addr)) {
	if message.Header.Type != unix.RTM_NEWNEIGH || len(message.Data) < unix.SizeofNdMsg {
		return
	}
	entry, err := netlink.NeighDeserialize(message.Data)
	if err != nil || entry.State != netlink.NUD_FAILED {
		return
	}
	if address, ok := netip.AddrFromSlice(entry.IP); ok {
		visit(entry.LinkIndex, address.Unmap())
	}
}
