// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// snapshot is what the kernel shows at one moment.
type snapshot struct {
	main map[netip.Prefix]netlink.Route // the best route to each destination
	ours map[routeKey]netlink.Route
	// up and tunnel are interfaces, by index.
	up, tunnel map[int]bool
	tunnels    tunnels
	loopback   int
	// before are interfaces that were down before the routes were read; after are
	// those that went down then or later.
	before, after downs
}

// routeKey is what the kernel tells the routes of one table apart by.
type routeKey struct {
	destination netip.Prefix
	metric      int
}

func keyOf(route netlink.Route) routeKey {
	destination, _ := destinationOf(route)
	return routeKey{destination, route.Priority}
}

// look asks in an order that matters: an interface whose routes are missing is
// then sure to be among those that were down.
func (d *Detours) look() (*snapshot, error) {
	before, err := d.downs()
	if err != nil {
		return nil, err
	}
	routes, err := d.kernel.Routes()
	if err != nil {
		return nil, err
	}
	after, err := d.downs()
	if err != nil {
		return nil, err
	}
	links, err := d.kernel.Links()
	if err != nil {
		return nil, err
	}
	seen := &snapshot{
		main: map[netip.Prefix]netlink.Route{}, ours: map[routeKey]netlink.Route{},
		up: map[int]bool{}, tunnel: map[int]bool{}, tunnels: newTunnels(), before: before, after: after,
	}
	for _, link := range links {
		if err := seen.note(link, d.kernel); err != nil {
			return nil, err
		}
	}
	for _, route := range routes {
		seen.sort(route)
	}
	seen.noteRoutes()
	return seen, nil
}

func (s *snapshot) note(link netlink.Link, kernel kernel) error {
	attributes := link.Attrs()
	s.up[attributes.Index] = isUp(attributes)
	s.tunnel[attributes.Index] = IsTunnel(link)
	if attributes.RawFlags&unix.IFF_LOOPBACK != 0 {
		s.loopback = attributes.Index
	}
	if !s.tunnel[attributes.Index] {
		return nil
	}
	return s.tunnels.note(link, kernel)
}

func (s *snapshot) sort(route netlink.Route) {
	destination, ok := destinationOf(route)
	switch {
	case !ok:
	case isOurs(route):
		s.ours[keyOf(route)] = route
	case route.Table == unix.RT_TABLE_MAIN && route.Tos == 0:
		best, exists := s.main[destination]
		if !exists || route.Priority < best.Priority {
			s.main[destination] = route
		}
	}
}

// wasDown: the interface is down, or was since the last look.
func (s *snapshot) wasDown(index int) bool {
	return !s.up[index] || s.before.has(index) || s.after.has(index)
}

// hidden are the destinations of the main table that lie inside a wanted detour
// and are not wanted themselves.
func hidden(main map[netip.Prefix]netlink.Route, plan []wanted) (inside []netip.Prefix) {
	detoured := map[netip.Prefix]bool{}
	lengths := map[int]bool{}
	for _, w := range plan {
		detoured[w.Destination] = true
		lengths[w.Destination.Bits()] = true
	}
	for destination := range main {
		if !detoured[destination] && isInside(destination, lengths, detoured) {
			inside = append(inside, destination)
		}
	}
	return inside
}

func isInside(destination netip.Prefix, lengths map[int]bool, detoured map[netip.Prefix]bool) bool {
	for length := range lengths {
		if length >= destination.Bits() {
			continue
		}
		if wider, err := destination.Addr().Prefix(length); err == nil && detoured[wider] {
			return true
		}
	}
	return false
}
