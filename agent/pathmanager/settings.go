// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

// Settings say how the connections of one pod get their subflows.
type Settings struct {
	// Manager says who opens further subflows.
	Manager v1alpha1.SubflowManager
	// Count is the number of subflows of a connection, the first one included;
	// 1 to 8.
	Count int
	// FirstAnnouncedPort is the first of the Count-1 ports that a listening pod
	// announces with manager Kernel; of the 16 from it on, those in use are left
	// out.
	FirstAnnouncedPort uint16
	// Addresses are the pod's addresses. Of each IP version the first one is
	// announced.
	Addresses []netip.Addr
	// Mode says between what further subflows are opened; empty for PerPath. The
	// others need manager Agent.
	Mode v1alpha1.SubflowMode
	// EachPair is how many subflows a full mesh has for each pair of addresses, as
	// long as Count suffices for all; 0 means 1.
	EachPair int
	// OpenAfter is when a connection gets its further subflows. With manager Kernel it
	// is kept by who holds the pod's announcements; the agent helps from then on.
	OpenAfter OpenAfter
	// Reopen is Never where closed subflows stay closed; empty for Always.
	Reopen v1alpha1.ReopenMode
	// InactivityTimeout is how long a connection without a subflow waits for another one,
	// in whole seconds; 0 for the namespace's own.
	InactivityTimeout time.Duration
	// ReceiveBuffer is the size of new sockets' receive buffers, in bytes; 0 for the
	// namespace's own choice.
	ReceiveBuffer int64
}

// OpenAfter keeps a connection on its first subflow until one of its conditions
// holds; the zero value does not.
type OpenAfter struct {
	// Bytes that the connection has moved, in both directions together; 0 where they
	// do not count.
	Bytes uint64
	// Time since the connection began; 0 where it does not count.
	Time time.Duration
}

const maxCount = 8

func (s Settings) validate() error {
	switch {
	case s.Manager != v1alpha1.SubflowManagerKernel && s.Manager != v1alpha1.SubflowManagerAgent:
		return fmt.Errorf("subflow manager %q: must be %s or %s", s.Manager, v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent)
	case s.Count < 1 || s.Count > maxCount:
		return fmt.Errorf("subflow count %d: must be 1 to %d", s.Count, maxCount)
	case s.announces() && (s.FirstAnnouncedPort == 0 || int(s.FirstAnnouncedPort)+s.extra()-1 > 0xffff):
		return fmt.Errorf("first announced port %d: must leave room for %d ports", s.FirstAnnouncedPort, s.extra())
	case s.announces() && len(s.Addresses) == 0:
		return errors.New("the kernel's path manager needs the pod's addresses")
	}
	return s.validateWays()
}

func (s Settings) validateWays() error {
	byAgent := s.Manager == v1alpha1.SubflowManagerAgent
	switch s.Mode {
	case "", v1alpha1.SubflowModePerPath:
	case v1alpha1.SubflowModeFullMesh, v1alpha1.SubflowModeNDiffPorts:
		if !byAgent {
			return fmt.Errorf("subflow mode %s needs manager %s", s.Mode, v1alpha1.SubflowManagerAgent)
		}
	default:
		return fmt.Errorf("subflow mode %q is not known", s.Mode)
	}
	switch {
	case s.OpenAfter.Time < 0:
		return fmt.Errorf("subflows after %s: must not be before the connection", s.OpenAfter.Time)
	case s.Reopen != "" && s.Reopen != v1alpha1.ReopenAlways && s.Reopen != v1alpha1.ReopenNever:
		return fmt.Errorf("reopen %q: must be %s or %s", s.Reopen, v1alpha1.ReopenAlways, v1alpha1.ReopenNever)
	}
	return nil
}

// youngFor is how old a connection becomes before it is looked at; 0 for not at all.
func (s Settings) youngFor() time.Duration {
	switch after := s.waits(); {
	case after.Bytes == 0:
		return after.Time
	case after.Time == 0:
		return firstLook
	default:
		return min(firstLook, after.Time)
	}
}

// waits is when the agent has something to do for a connection. With manager Kernel
// that can wait for the time, where there is one.
func (s Settings) waits() OpenAfter {
	if s.Manager == v1alpha1.SubflowManagerKernel && s.OpenAfter.Time > 0 {
		return OpenAfter{Time: s.OpenAfter.Time}
	}
	return s.OpenAfter
}

// follows says whether connections must be followed from here. The agent opens
// even a single subflow again.
func (s Settings) follows() bool {
	return s.extra() > 0 || s.Manager == v1alpha1.SubflowManagerAgent
}

func (s Settings) fullMesh() bool { return s.Mode == v1alpha1.SubflowModeFullMesh }

// extra is the number of subflows beyond the first.
func (s Settings) extra() int { return s.Count - 1 }

func (s Settings) announces() bool {
	return s.Manager == v1alpha1.SubflowManagerKernel && s.extra() > 0
}

// address is the pod's first address of an IP version.
func (s Settings) address(is func(netip.Addr) bool) (netip.Addr, bool) {
	for _, address := range s.Addresses {
		if is(address.Unmap()) {
			return address.Unmap(), true
		}
	}
	return netip.Addr{}, false
}

// capabilities are what is known of a namespace beside its settings.
type capabilities struct {
	// listening is true once an MPTCP socket listened in the namespace.
	listening bool
	// announcesIPv6 is true where the kernel can send an announcement of an IPv6
	// address with a port.
	announcesIPv6 bool
	// room is the number of endpoints that can be added.
	room int
	// announced are the ports that are announced already, and inUse those that
	// cannot be.
	announced, inUse map[netip.AddrPort]bool
	// announcing is what the pod announces of what the settings want.
	announcing announcing
}

// announcing is what of its addresses a pod announces.
type announcing uint8

const (
	announcingAll announcing = iota
	// announcingAsBefore is what it announces already.
	announcingAsBefore
	announcingNothing
)

// limits are those of the namespace. A namespace that announces must not follow
// announcements: else both ends of a connection open subflows at once and refuse
// each other's, each for having reached its limit.
func (s Settings) limits(c capabilities) mptcpnl.Limits {
	limits := mptcpnl.Limits{Subflows: uint32(s.extra())}
	if s.Manager == v1alpha1.SubflowManagerKernel && !c.listening {
		limits.AcceptedAddresses = limits.Subflows
	}
	return limits
}

// endpoints are those that the kernel's path manager needs. IPv4 goes first where
// there is no room for the ports of both IP versions.
func (s Settings) endpoints(c capabilities) (endpoints []mptcpnl.Endpoint) {
	if !s.announces() {
		return nil
	}
	if !c.listening {
		if s.OpenAfter != (OpenAfter{}) {
			return nil // the kernel would use it on each connection at once
		}
		return s.clientEndpoints(c)
	}
	if c.announcing == announcingNothing {
		return nil
	}
	for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.Is6} {
		address, ok := s.address(is)
		if !ok || address.Is6() && !c.announcesIPv6 {
			continue
		}
		for _, port := range s.ports(address, c) {
			endpoints = append(endpoints, mptcpnl.Endpoint{Address: address, Port: port, Flags: mptcpnl.FlagSignal})
		}
	}
	return endpoints[:min(len(endpoints), c.room)]
}

// portRange is how many ports from the first on may be announced.
const portRange = 16

// ports are those to announce with an address: what is announced already, then the
// first ones that can be. A port whose endpoint was removed stays in use as long as
// a connection has it, and a minute longer.
func (s Settings) ports(address netip.Addr, c capabilities) []uint16 {
	var announced, free []uint16
	for port := int(s.FirstAnnouncedPort); port < int(s.FirstAnnouncedPort)+portRange && port <= 0xffff; port++ {
		switch at := netip.AddrPortFrom(address, uint16(port)); {
		case c.announced[at]:
			announced = append(announced, uint16(port))
		case !c.inUse[at] && c.announcing == announcingAll:
			free = append(free, uint16(port))
		}
	}
	ports := append(announced, free...)
	return ports[:min(len(ports), s.extra())]
}

// clientEndpoints gives the IPv6 connections of a pod that only connects one
// further subflow that needs no announcement, where the peer can make none.
func (s Settings) clientEndpoints(c capabilities) []mptcpnl.Endpoint {
	if _, ok := s.address(netip.Addr.Is6); !ok || c.announcesIPv6 || c.room < 1 {
		return nil
	}
	return []mptcpnl.Endpoint{anywhere(netip.IPv6Unspecified())}
}

// anywhere is an endpoint that stands for whatever local address the routes
// choose. Adding it makes the kernel open one subflow on each connection below
// its limit, and removing it closes none: with a real address it would close all
// subflows that have this address.
func anywhere(unspecified netip.Addr) mptcpnl.Endpoint {
	return mptcpnl.Endpoint{Address: unspecified, Flags: mptcpnl.FlagSubflow}
}
