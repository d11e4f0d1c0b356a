// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NIC is a network interface of the node.
type NIC struct {
	// Name of the interface; empty when there is none.
	Name string
	// Index of the interface, positive; 0 when there is none.
	Index int
	// MAC is the hardware address.
	MAC net.HardwareAddr
	// MTU in bytes.
	MTU int
	// Up: the NIC is set up and has a carrier.
	Up bool
	// Addresses are the usable global ones with their prefix lengths: no
	// link-local, tentative, deprecated or temporary ones. First those in the
	// path's address ranges, IPv4 before IPv6, networks before single hosts.
	Addresses []netip.Prefix
}

// What the names of the interfaces that Braid itself makes on a node begin with; the
// number of a path's slot follows. They are the two ends of a path's queue, and
// never NICs of a path, whatever it matches.
const (
	QueuePrefix    = "braidq"
	QueueEndPrefix = "braidx"
)

var ownName = regexp.MustCompile("^(" + QueuePrefix + "|" + QueueEndPrefix + ")[0-9]+$")

// candidate is an interface as the kernel shows it.
type candidate struct {
	NIC
	setUp     bool
	loopback  bool
	tunnel    *Tunnel // nil for all but tunnels
	podLike   bool
	master    *master      // nil for most
	strict    bool         // it drops packets from addresses that are not routed to it
	allOwn    []netip.Addr // all its addresses, usable or not
	secondary map[netip.Addr]bool
}

// master is the bond, bridge, switch or the like that has all that comes in by an interface.
type master struct{ name, kind string }

// masterOf is nil where the interface has what comes in by it, as in a VRF too.
func masterOf(link netlink.Link, byIndex map[int]netlink.Link) *master {
	has := byIndex[link.Attrs().MasterIndex]
	if has == nil || has.Type() == "vrf" {
		return nil
	}
	return &master{has.Attrs().Name, has.Type()}
}

// candidates joins interfaces and addresses, sorted by name. Braid's own interfaces
// are left out.
func candidates(links []netlink.Link, addresses []netlink.Addr) []*candidate {
	byIndex := make(map[int]*candidate, len(links))
	linksByIndex := make(map[int]netlink.Link, len(links))
	for _, link := range links {
		linksByIndex[link.Attrs().Index] = link
	}
	all := make([]*candidate, 0, len(links))
	for _, link := range links {
		if ownName.MatchString(link.Attrs().Name) {
			continue
		}
		c := newCandidate(link)
		c.master = masterOf(link, linksByIndex)
		byIndex[c.Index] = c
		all = append(all, c)
	}
	for _, address := range addresses {
		if c := byIndex[address.LinkIndex]; c != nil && address.IPNet != nil {
			c.add(address)
		}
	}
	for _, c := range all {
		c.podLike = c.podLike && !slices.ContainsFunc(c.Addresses, isNetwork)
	}
	slices.SortFunc(all, func(a, b *candidate) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func newCandidate(link netlink.Link) *candidate {
	a := link.Attrs()
	return &candidate{
		NIC:       NIC{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr, MTU: a.MTU, Up: isUp(a)},
		setUp:     a.RawFlags&unix.IFF_UP != 0,
		loopback:  a.RawFlags&unix.IFF_LOOPBACK != 0,
		tunnel:    tunnelOf(link),
		podLike:   link.Type() == "veth", // until an address shows that it is a NIC
		secondary: map[netip.Addr]bool{},
	}
}

// working are the flags of an interface that is set up and has a carrier.
const working = unix.IFF_UP | unix.IFF_LOWER_UP

func isUp(a *netlink.LinkAttrs) bool {
	return a.RawFlags&working == working
}

// IsTunnel tells interfaces that encapsulate packets: what the cluster network routes
// into them must not leave as it is by another NIC.
func IsTunnel(link netlink.Link) bool {
	if link.Attrs().EncapType != "ether" && link.Attrs().EncapType != "loopback" {
		return true
	}
	switch link.Type() {
	case "vxlan", "geneve", "gretap", "ip6gretap", "erspan", "ip6erspan", "tun":
		return true
	}
	return false
}

func (c *candidate) add(address netlink.Addr) {
	ip, ok := netip.AddrFromSlice(address.IP)
	if !ok {
		return
	}
	ip = ip.Unmap()
	c.allOwn = append(c.allOwn, ip)
	if !isUsable(ip, address) {
		return
	}
	ones, _ := address.Mask.Size()
	c.Addresses = append(c.Addresses, netip.PrefixFrom(ip, ones))
	c.secondary[ip] = address.Flags&unix.IFA_F_SECONDARY != 0
}

func isUsable(ip netip.Addr, address netlink.Addr) bool {
	const unusable = unix.IFA_F_TENTATIVE | unix.IFA_F_DEPRECATED | unix.IFA_F_DADFAILED
	if address.Flags&unusable != 0 || address.Scope != unix.RT_SCOPE_UNIVERSE || !ip.IsGlobalUnicast() {
		return false
	}
	return !ip.Is6() || address.Flags&unix.IFA_F_TEMPORARY == 0
}

func isNetwork(p netip.Prefix) bool { return !p.IsSingleIP() }

// onPath is the candidate as NIC of a path, with its addresses in order.
func (c *candidate) onPath(ranges []netip.Prefix) NIC {
	nic := c.NIC
	nic.Addresses = slices.Clone(c.Addresses)
	slices.SortFunc(nic.Addresses, func(a, b netip.Prefix) int {
		rank := func(p netip.Prefix) []int {
			return []int{
				asInt(!inRanges(p.Addr(), ranges)), asInt(p.Addr().Is6()), asInt(p.IsSingleIP()), asInt(c.secondary[p.Addr()]),
			}
		}
		if order := slices.Compare(rank(a), rank(b)); order != 0 {
			return order
		}
		return a.Addr().Compare(b.Addr())
	})
	return nic
}

func asInt(b bool) int {
	if b {
		return 1
	}
	return 0
}
