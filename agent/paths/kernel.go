// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// kernel is what this package asks of rtnetlink.
type kernel interface {
	// Links lists all interfaces: `ip link show`.
	Links() ([]netlink.Link, error)
	// Addresses lists the addresses of all interfaces: `ip address show`.
	Addresses() ([]netlink.Addr, error)
	// Routes lists the routes of the main table and of that of detours, both
	// families: `ip route show table 2845`.
	Routes() ([]netlink.Route, error)
	// TunnelEnds lists where a VXLAN device sends frames to: `bridge fdb show dev`.
	TunnelEnds(index int) ([]net.IP, error)
	// ReplaceRoute adds a route, or puts it in the place of the one with the same
	// table, destination and metric: `ip route replace`.
	ReplaceRoute(*netlink.Route) error
	// DeleteRoute removes a route: `ip route delete`.
	DeleteRoute(*netlink.Route) error
	// Rules lists the policy routing rules of both families: `ip rule show`.
	Rules() ([]netlink.Rule, error)
	// AddRule adds a policy routing rule: `ip rule add`.
	AddRule(*netlink.Rule) error
	// DeleteRule removes a policy routing rule: `ip rule delete`.
	DeleteRule(*netlink.Rule) error
}

// dumpAttempts is how often a list is read again that changed while it was read.
const dumpAttempts = 10

// rtnetlink is the kernel of one network namespace.
type rtnetlink struct {
	handle *netlink.Handle
	// settings is for what handle does not know of.
	settings *nl.SocketHandle
}

func openKernel(namespace netns.NsHandle) (*rtnetlink, error) {
	handle, err := netlink.NewHandleAt(namespace, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("opening rtnetlink: %w", err)
	}
	socket, err := nl.GetNetlinkSocketAt(namespace, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		handle.Close()
		return nil, fmt.Errorf("opening rtnetlink: %w", err)
	}
	return &rtnetlink{handle, &nl.SocketHandle{Socket: socket}}, nil
}

func (k *rtnetlink) close() {
	k.handle.Close()
	k.settings.Close()
}

func (k *rtnetlink) Links() ([]netlink.Link, error) {
	return dump("interfaces", k.handle.LinkList)
}

func (k *rtnetlink) Addresses() ([]netlink.Addr, error) {
	return dump("addresses", func() ([]netlink.Addr, error) {
		return k.handle.AddrList(nil, netlink.FAMILY_ALL)
	})
}

func (k *rtnetlink) Routes() (routes []netlink.Route, err error) {
	for _, family := range families {
		some, err := dump("routes", func() ([]netlink.Route, error) { return k.routesOf(family) })
		if err != nil {
			return nil, err
		}
		routes = append(routes, some...)
	}
	return routes, nil
}

// routesOf keeps no routes of other tables: the local one has several for each pod.
func (k *rtnetlink) routesOf(family int) (routes []netlink.Route, err error) {
	allTables := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	err = k.handle.RouteListFilteredIter(family, allTables, netlink.RT_FILTER_TABLE, func(route netlink.Route) bool {
		if route.Table == unix.RT_TABLE_MAIN || route.Table == DetourTable {
			routes = append(routes, route)
		}
		return true
	})
	return routes, err
}

func (k *rtnetlink) TunnelEnds(index int) (ends []net.IP, err error) {
	entries, err := dump("a tunnel's forwarding database", func() ([]netlink.Neigh, error) {
		return k.handle.NeighList(index, unix.AF_BRIDGE)
	})
	for i := range entries {
		ends = append(ends, entries[i].IP)
	}
	return ends, err
}

func (k *rtnetlink) ReplaceRoute(route *netlink.Route) error { return k.handle.RouteReplace(route) }

func (k *rtnetlink) DeleteRoute(route *netlink.Route) error { return k.handle.RouteDel(route) }

func (k *rtnetlink) Rules() (rules []netlink.Rule, err error) {
	for _, family := range families {
		some, err := dump("rules", func() ([]netlink.Rule, error) { return k.handle.RuleList(family) })
		if err != nil {
			return nil, err
		}
		rules = append(rules, some...)
	}
	return rules, nil
}

func (k *rtnetlink) AddRule(rule *netlink.Rule) error { return k.handle.RuleAdd(rule) }

func (k *rtnetlink) DeleteRule(rule *netlink.Rule) error { return k.handle.RuleDel(rule) }

var families = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}

// dump reads a list until it did not change meanwhile: only then it is whole.
func dump[T any](what string, list func() ([]T, error)) (items []T, err error) {
	for range dumpAttempts {
		items, err = list()
		if err == nil {
			return items, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return nil, fmt.Errorf("listing %s: %w", what, err)
}

// subscribe opens a socket that receives changes of these kinds, with room for
// a burst of them.
func subscribe(namespace netns.NsHandle, groups ...uint) (*nl.NetlinkSocket, error) {
	socket, err := nl.SubscribeAt(namespace, netns.None(), unix.NETLINK_ROUTE, groups...)
	if err != nil {
		return nil, fmt.Errorf("subscribing to rtnetlink: %w", err)
	}
	if err := socket.SetReceiveBufferSize(receiveBuffer, true); err != nil {
		socket.Close()
		return nil, fmt.Errorf("enlarging the receive buffer of rtnetlink: %w", err)
	}
	return socket, nil
}

// receiveBuffer is in bytes; an interface's change takes about two thousand.
const receiveBuffer = 1 << 20
