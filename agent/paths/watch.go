// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	// quiet is the least time between two notifications: what changes meanwhile
	// is told in one.
	quiet = 10 * time.Millisecond
	// resubscribeDelay is the pause after a subscription could not be made.
	resubscribeDelay = time.Second
)

var watchedGroups = []uint{
	unix.RTNLGRP_LINK,
	unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
	unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP, unix.RTNLGRP_NEIGH,
	groupIPv4Netconf,
}

// Watch tells when a link, an address, a filter of IPv4, a route of the main table, or something
// that Detours keeps has changed. A first notification comes at once, for what is
// there already. A later one follows a change immediately; changes within the next
// 10 ms are told in one. Where the kernel dropped messages, a notification stands
// for them, so a consumer that looks at everything anew misses nothing. The
// channel closes after the context ends; trouble goes to the context's logger.
func (n *Node) Watch(ctx context.Context) (<-chan struct{}, error) {
	socket, err := subscribe(n.namespace, watchedGroups...)
	if err != nil {
		return nil, err
	}
	n.outdate() // what was asked before could have changed untold
	n.routers.watched.Store(true)
	n.outside.watched.Store(true)
	notifications := make(chan struct{}, 1)
	context.AfterFunc(ctx, func() {
		n.routers.watched.Store(false)
		n.outside.watched.Store(false)
	})
	go pace(n.begin(ctx, socket, watchedGroups), notifications)
	return notifications, nil
}

// WatchLinks is as Watch, of links alone, and tells of each change at once.
func (n *Node) WatchLinks(ctx context.Context) (<-chan struct{}, error) {
	groups := []uint{unix.RTNLGRP_LINK}
	socket, err := subscribe(n.namespace, groups...)
	if err != nil {
		return nil, err
	}
	return n.begin(ctx, socket, groups), nil
}

// begin tells of a first change at once, and of others until the context ends.
func (n *Node) begin(ctx context.Context, socket *nl.NetlinkSocket, groups []uint) <-chan struct{} {
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	go n.follow(ctx, socket, groups, changed)
	return changed
}

// follow signals changes until the context ends, and subscribes again when a
// socket breaks.
func (n *Node) follow(ctx context.Context, socket *nl.NetlinkSocket, groups []uint, changed chan<- struct{}) {
	defer close(changed)
	for socket != nil {
		err := n.receive(ctx, socket, changed)
		if ctx.Err() != nil {
			return
		}
		logr.FromContextOrDiscard(ctx).Error(err, "failed to watch the node's network; subscribing again")
		time.Sleep(quiet) // a socket that always breaks must not take all CPU
		socket = n.resubscribe(ctx, groups)
		n.outdate()
		signal(changed)
	}
}

// resubscribe returns nil when the context ends first.
func (n *Node) resubscribe(ctx context.Context, groups []uint) *nl.NetlinkSocket {
	for {
		socket, err := subscribe(n.namespace, groups...)
		if err == nil {
			return socket
		}
		logr.FromContextOrDiscard(ctx).Error(err, "failed to watch the node's network; trying again", "after", resubscribeDelay)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(resubscribeDelay):
		}
	}
}

// receive signals changes until the socket breaks or the context ends, and closes
// the socket.
func (n *Node) receive(ctx context.Context, socket *nl.NetlinkSocket, changed chan<- struct{}) error {
	closeSocket := sync.OnceFunc(socket.Close)
	defer closeSocket()
	defer context.AfterFunc(ctx, closeSocket)()
	for {
		messages, from, err := socket.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // messages were lost, the socket goes on
			n.outdate()
			signal(changed)
		case err != nil:
			return fmt.Errorf("receiving from rtnetlink: %w", err)
		case from.Pid == nl.PidKernel && (n.concernsRouters(messages) || n.gateways.concerned(messages) || slices.ContainsFunc(messages, matters)):
			signal(changed)
		}
	}
}

// signal never waits: one pending signal stands for all.
func signal(changed chan<- struct{}) {
	select {
	case changed <- struct{}{}:
	default:
	}
}

// pace passes signals on, the first of a series at once.
func pace(changed <-chan struct{}, notifications chan<- struct{}) {
	defer close(notifications)
	for range changed {
		signal(notifications)
		time.Sleep(quiet)
	}
}

// matters leaves out what cannot change anything here: states of bridge ports,
// routes of tables that are neither main nor ours, and our own additions.
func matters(message syscall.NetlinkMessage) bool {
	switch message.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return len(message.Data) >= unix.SizeofIfInfomsg && message.Data[0] != unix.AF_BRIDGE
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return true
	case unix.RTM_NEWRULE, unix.RTM_DELRULE, newNetconf:
		return true
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return routeMatters(message)
	}
	return false
}

func routeMatters(message syscall.NetlinkMessage) bool {
	if len(message.Data) < unix.SizeofRtMsg {
		return false
	}
	route := nl.DeserializeRtMsg(message.Data)
	if route.Flags&unix.RTM_F_CLONED != 0 {
		return false
	}
	ours := route.Protocol == DetourProtocol && message.Header.Type == unix.RTM_DELROUTE
	return ours || route.Table == unix.RT_TABLE_MAIN
}
