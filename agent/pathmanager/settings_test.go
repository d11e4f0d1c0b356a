// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"braid.dev/braid/api/v1alpha1"
)

// describe says what a namespace gets, as `ip mptcp` would.
func describe(s Settings, c capabilities) string {
	limits := s.limits(c)
	lines := []string{fmt.Sprintf("add_addr_accepted %d subflows %d", limits.AcceptedAddresses, limits.Subflows)}
	for _, endpoint := range s.endpoints(c) {
		lines = append(lines, endpoint.String())
	}
	return strings.Join(lines, "\n")
}

func TestLimitsAndEndpoints(t *testing.T) {
	ipv4, ipv6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	both := []netip.Addr{ipv6, ipv4}
	kernel, agent := v1alpha1.SubflowManagerKernel, v1alpha1.SubflowManagerAgent
	listens := capabilities{listening: true, room: 7}
	connects := capabilities{room: 7}
	tests := map[string]struct {
		settings     Settings
		capabilities capabilities
		want         string
	}{
		"a pod that connects follows announcements": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{ipv4}}, connects, "add_addr_accepted 2 subflows 2",
		},
		"a pod that connects by IPv6 gets one subflow without an announcement": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: both}, connects, "add_addr_accepted 2 subflows 2\n:: id 0 subflow",
		},
		"a pod that listens announces, and follows no announcements": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{ipv4}}, listens,
			"add_addr_accepted 0 subflows 2\n10.0.0.1 id 0 port 61001 signal\n10.0.0.1 id 0 port 61002 signal",
		},
		"IPv6 addresses are not announced where they cannot be": {
			Settings{Manager: kernel, Count: 2, FirstAnnouncedPort: 61001, Addresses: both}, listens, "add_addr_accepted 0 subflows 1\n10.0.0.1 id 0 port 61001 signal",
		},
		"IPv6 addresses are announced where they can be": {
			Settings{Manager: kernel, Count: 2, FirstAnnouncedPort: 61001, Addresses: both}, capabilities{listening: true, announcesIPv6: true, room: 7},
			"add_addr_accepted 0 subflows 1\n10.0.0.1 id 0 port 61001 signal\nfd00::1 id 0 port 61001 signal",
		},
		"a pod that connects needs no more where peers announce IPv6 addresses": {
			Settings{Manager: kernel, Count: 2, FirstAnnouncedPort: 61001, Addresses: both}, capabilities{announcesIPv6: true, room: 7}, "add_addr_accepted 1 subflows 1",
		},
		"IPv4 goes first where there is no room for all": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: both}, capabilities{listening: true, announcesIPv6: true, room: 3},
			"add_addr_accepted 0 subflows 2\n10.0.0.1 id 0 port 61001 signal\n10.0.0.1 id 0 port 61002 signal\nfd00::1 id 0 port 61001 signal",
		},
		"eight subflows fit": {
			Settings{Manager: kernel, Count: 8, FirstAnnouncedPort: 65529, Addresses: []netip.Addr{ipv4}}, listens,
			"add_addr_accepted 0 subflows 7" + ports(65529, 65535),
		},
		"a port in use is left out": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{ipv4}}, capabilities{listening: true, room: 7, inUse: portsOf(ipv4, 61002)},
			"add_addr_accepted 0 subflows 2\n10.0.0.1 id 0 port 61001 signal\n10.0.0.1 id 0 port 61003 signal",
		},
		"what is announced already stays, though an earlier port is free again": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{ipv4}}, capabilities{listening: true, room: 7, announced: portsOf(ipv4, 61003, 61004)},
			"add_addr_accepted 0 subflows 2\n10.0.0.1 id 0 port 61003 signal\n10.0.0.1 id 0 port 61004 signal",
		},
		"a port that is announced and not of the range does not stay": {
			Settings{Manager: kernel, Count: 2, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{ipv4}}, capabilities{listening: true, room: 7, announced: portsOf(ipv4, 61000, 61017)},
			"add_addr_accepted 0 subflows 1\n10.0.0.1 id 0 port 61001 signal",
		},
		"a pod of short connections announces nothing, and follows no announcements": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{ipv4}}, capabilities{listening: true, room: 7, announcing: announcingNothing},
			"add_addr_accepted 0 subflows 2",
		},
		"until it is known what a pod's connections are like it announces what it did": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{ipv4}},
			capabilities{listening: true, room: 7, announced: portsOf(ipv4, 61002), announcing: announcingAsBefore},
			"add_addr_accepted 0 subflows 2\n10.0.0.1 id 0 port 61002 signal",
		},
		"the last port is the highest that there is": {
			Settings{Manager: kernel, Count: 3, FirstAnnouncedPort: 65534, Addresses: []netip.Addr{ipv4}}, capabilities{listening: true, room: 7, inUse: portsOf(ipv4, 65534)},
			"add_addr_accepted 0 subflows 2\n10.0.0.1 id 0 port 65535 signal",
		},
		"with one subflow nothing is announced": {
			Settings{Manager: kernel, Count: 1, FirstAnnouncedPort: 61001, Addresses: both}, listens, "add_addr_accepted 0 subflows 0",
		},
		"an IPv4 address in IPv6 form is an IPv4 address": {
			Settings{Manager: kernel, Count: 2, FirstAnnouncedPort: 61001, Addresses: []netip.Addr{netip.MustParseAddr("::ffff:10.0.0.1")}}, listens,
			"add_addr_accepted 0 subflows 1\n10.0.0.1 id 0 port 61001 signal",
		},
		"the agent needs no endpoints": {
			Settings{Manager: agent, Count: 3, Addresses: both}, listens, "add_addr_accepted 0 subflows 2",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if err := test.settings.validate(); err != nil {
				t.Fatal(err)
			}
			if got := describe(test.settings, test.capabilities); got != test.want {
				t.Errorf("it gets\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func portsOf(address netip.Addr, ports ...uint16) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	for _, port := range ports {
		all[netip.AddrPortFrom(address, port)] = true
	}
	return all
}

func ports(first, last int) (lines string) {
	for port := first; port <= last; port++ {
		lines += fmt.Sprintf("\n10.0.0.1 id 0 port %d signal", port)
	}
	return lines
}
