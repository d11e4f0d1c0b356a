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

// neighbour is an address on the link of a NIC.
type neighbour struct {
	nic     int
	address netip.Addr
}

// neighbours tells of addresses that the kernel has just resolved, or cannot. What it
// misses, probes find out.
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

// each calls visit for each that answered or failed since the last call.
func (n neighbours) each(visit func(which neighbour, answered bool)) {
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
			visitNeighbour(message, visit)
		}
	}
}

// visitNeighbour leaves out what was heard and not asked for (NUD_STALE), and entries that
// somebody removed: neither says whether the address answers.
func visitNeighbour(message syscall.NetlinkMessage, visit func(which neighbour, answered bool)) {
	if message.Header.Type != unix.RTM_NEWNEIGH || len(message.Data) < unix.SizeofNdMsg {
		return
	}
	entry, err := netlink.NeighDeserialize(message.Data)
	if err != nil {
		return
	}
	answered, failed := entry.State&answers != 0, entry.State == netlink.NUD_FAILED && message.Header.Pid == 0
	if address, ok := netip.AddrFromSlice(entry.IP); ok && (answered || failed) {
		visit(neighbour{entry.LinkIndex, address.Unmap()}, answered)
	}
}

const answers = netlink.NUD_REACHABLE | netlink.NUD_PERMANENT | netlink.NUD_NOARP
