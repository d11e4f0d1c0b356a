// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/agentapi"
)

const (
	// discard is a port on which nobody listens: the kernel at the other end says so.
	discard = 9
	// patience is how long an answer may take: neighbours are asked for once a second, and
	// three times.
	patience = 3500 * time.Millisecond
	// askedAtOnce bounds how many sockets are open.
	askedAtOnce = 32
)

// ask finds out which addresses answer, each by its NIC alone.
func ask(ctx context.Context, targets []Target) ([]agentapi.Answer, error) {
	answers := make([]agentapi.Answer, len(targets))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askedAtOnce)
	for i, target := range targets {
		group.Go(func() error {
			answered, err := answersBy(ctx, target)
			answers[i] = agentapi.Answer{NIC: target.NIC, Address: target.Address, Answered: answered}
			if err != nil {
				answers[i].Message = err.Error()
			}
			return ctx.Err()
		})
	}
	return answers, group.Wait()
}

// answersBy sends a datagram that nobody waits for. That the port is closed is an answer. A
// firewall may keep that back, and kernels tell it a few times a second only: then it counts
// that the neighbour is known by its hardware address.
func answersBy(ctx context.Context, target Target) (bool, error) {
	dialer := net.Dialer{Control: func(_, _ string, connection syscall.RawConn) (err error) {
		controlErr := connection.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), target.NIC) })
		return errors.Join(controlErr, err)
	}}
	connection, err := dialer.DialContext(ctx, "udp", netip.AddrPortFrom(target.Address, discard).String())
	if err != nil {
		return false, fmt.Errorf("asking by %s: %w", target.NIC, err)
	}
	defer connection.Close()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		if _, err := connection.Write([]byte("braid")); errors.Is(err, syscall.ECONNREFUSED) {
			return true, nil
		}
		_ = connection.SetReadDeadline(time.Now().Add(patience / 7))
		_, err := connection.Read(make([]byte, 1))
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			return true, nil
		}
		if isNeighbour(target) {
			return true, nil
		}
	}
	return false, nil
}

// isNeighbour is true of an address whose hardware address the kernel has confirmed. What it
// knows from before it would ask about five seconds later only: it is told to ask now.
func isNeighbour(target Target) bool {
	neighbour := neighbourOf(target)
	switch {
	case neighbour == nil:
		return false
	case neighbour.State&(unix.NUD_STALE|unix.NUD_DELAY) != 0:
		neighbour.State = unix.NUD_PROBE
		_ = netlink.NeighSet(neighbour) // at the worst it stays unknown
	}
	return neighbour.State&(unix.NUD_REACHABLE|unix.NUD_PERMANENT) != 0
}

func neighbourOf(target Target) *netlink.Neigh {
	link, err := netlink.LinkByName(target.NIC)
	if err != nil {
		return nil
	}
	neighbours, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return nil
	}
	i := slices.IndexFunc(neighbours, func(n netlink.Neigh) bool {
		address, ok := netip.AddrFromSlice(n.IP)
		return ok && address.Unmap() == target.Address
	})
	if i < 0 {
		return nil
	}
	return &neighbours[i]
}

// routeTo is the kernel's own way to an address.
func routeTo(to netip.Addr, interfaces []paths.Interface) agentapi.Route {
	route := agentapi.Route{To: to}
	found, err := netlink.RouteGet(to.AsSlice())
	if err != nil || len(found) == 0 {
		route.Message = fmt.Sprintf("there is no route: %v", err)
		return route
	}
	gateway, _ := netip.AddrFromSlice(found[0].Gw)
	route.Gateway = gateway.Unmap()
	for i := range interfaces {
		if one := &interfaces[i]; one.Index == found[0].LinkIndex {
			kind := paths.TunnelKindOf(one.Link)
			route.NIC, route.Tunnel, route.Overlay, route.Steered = one.Name, one.Tunnel, string(kind), kind.Steered()
		}
	}
	return route
}
