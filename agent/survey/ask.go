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
func ask(ctx context.Context, targets []Target, interfaces []paths.Interface) ([]agentapi.Answer, error) {
	answers := make([]agentapi.Answer, len(targets))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askedAtOnce)
	for i, target := range targets {
		group.Go(func() error {
			asked := query{Target: target}
			asked.find(interfaces)
			answers[i] = asked.answer(ctx)
			return ctx.Err()
		})
	}
	return answers, group.Wait()
}

// query is a target, and how packets get there.
type query struct {
	Target
	from   netip.Addr // the NIC's own address
	router netip.Addr // not valid on the NIC's link
	mtu    int
}

// find finds out from where and over what: hosts with several NICs often have routes that
// go by the source address.
func (q *query) find(interfaces []paths.Interface) {
	i := slices.IndexFunc(interfaces, func(one paths.Interface) bool { return one.Name == q.NIC })
	if i < 0 {
		return
	}
	own, onLink := interfaces[i].From(q.Address)
	q.from, q.mtu = own, interfaces[i].MTU
	if !onLink && own.IsValid() {
		q.router, _ = paths.RouterTo(q.Address, own, interfaces[i].Index) // without a route there is no router
	}
}

func (q *query) answer(ctx context.Context) agentapi.Answer {
	answer := agentapi.Answer{NIC: q.NIC, Address: q.Address, Router: q.router}
	answered, err := q.isAnswered(ctx)
	answer.Answered = answered
	if err != nil {
		answer.Message = err.Error()
	}
	if answered && q.router.IsValid() {
		answer.PathMTU = q.pathMTU(ctx)
	}
	return answer
}

// dial opens a socket that sends by the NIC alone.
func (q *query) dial(ctx context.Context, options ...func(fd int) error) (net.Conn, error) {
	options = append(options, func(fd int) error { return unix.BindToDevice(fd, q.NIC) })
	dialer := net.Dialer{Control: func(_, _ string, connection syscall.RawConn) error {
		var failed error
		err := connection.Control(func(fd uintptr) {
			for _, option := range options {
				failed = errors.Join(failed, option(int(fd)))
			}
		})
		return errors.Join(err, failed)
	}}
	if q.from.IsValid() {
		dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(q.from, 0))
	}
	connection, err := dialer.DialContext(ctx, "udp", netip.AddrPortFrom(q.Address, discard).String())
	if err != nil {
		return nil, fmt.Errorf("asking by %s: %w", q.NIC, err)
	}
	return connection, nil
}

// isAnswered sends a datagram that nobody waits for. That the port is closed is an answer. A
// firewall may keep that back, and kernels tell it a few times a second only: then it counts
// that the neighbour is known by its hardware address.
func (q *query) isAnswered(ctx context.Context) (bool, error) {
	connection, err := q.dial(ctx)
	if err != nil {
		return false, err
	}
	defer connection.Close()
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		if err := exchange(connection, []byte("braid")); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			return true, nil
		}
		if !q.router.IsValid() && isNeighbour(q.Target) {
			return true, nil
		}
	}
	return false, nil
}

// exchange sends, and waits a little for an answer.
func exchange(connection net.Conn, datagram []byte) error {
	if _, err := connection.Write(datagram); err != nil {
		return err
	}
	_ = connection.SetReadDeadline(time.Now().Add(patience / 7))
	_, err := connection.Read(make([]byte, 1))
	return err
}

// pathMTU is the largest packet that routers let pass, where one of them says that those of
// the NIC's size are too large; 0 where none does.
func (q *query) pathMTU(ctx context.Context) int {
	level, discover, mtu, headers := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_MTU, 28
	if q.Address.Is6() {
		level, discover, mtu, headers = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_MTU, 48
	}
	var socket int
	connection, err := q.dial(ctx, func(fd int) error {
		socket = fd
		return unix.SetsockoptInt(fd, level, discover, unix.IP_PMTUDISC_DO)
	})
	if err != nil {
		return 0
	}
	defer connection.Close()
	for range 2 { // what an earlier one learned has the second fail at once
		if err := exchange(connection, make([]byte, q.mtu-headers)); errors.Is(err, syscall.EMSGSIZE) {
			known, err := unix.GetsockoptInt(socket, level, mtu)
			if err == nil && known < q.mtu {
				return known
			}
		}
	}
	return 0
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
