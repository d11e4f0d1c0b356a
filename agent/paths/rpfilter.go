// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What package unix lacks of linux/netconf.h and linux/rtnetlink.h.
const (
	netconfIndex     = 1  // NETCONFA_IFINDEX
	netconfRPFilter  = 3  // NETCONFA_RP_FILTER
	netconfAll       = -1 // NETCONFA_IFINDEX_ALL
	netconfHeader    = 4  // struct netconfmsg, padded
	newNetconf       = 80 // RTM_NEWNETCONF
	groupIPv4Netconf = 24 // RTNLGRP_IPV4_NETCONF
	strictFilter     = 1
)

// strictFilters are the interfaces on which the kernel drops IPv4 packets that come in by
// another interface than answers would leave by (net.ipv4.conf.*.rp_filter 1).
func (k *rtnetlink) strictFilters() (map[int]bool, error) {
	modes, err := dump("settings of IPv4", k.reversePathFilters)
	if err != nil {
		return nil, err
	}
	all, strict := 0, map[int]bool{}
	for _, mode := range modes {
		if mode.index == netconfAll {
			all = mode.mode
		}
	}
	for _, mode := range modes {
		strict[mode.index] = max(all, mode.mode) == strictFilter
	}
	return strict, nil
}

type reversePathFilter struct{ index, mode int }

// reversePathFilters equals `ip netconf show`.
func (k *rtnetlink) reversePathFilters() (modes []reversePathFilter, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETNETCONF, unix.NLM_F_DUMP)
	request.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.settings}
	request.AddRawData([]byte{unix.AF_INET, 0, 0, 0})
	messages, err := request.Execute(unix.NETLINK_ROUTE, newNetconf)
	for _, message := range messages {
		if len(message) < netconfHeader || message[0] != unix.AF_INET {
			continue
		}
		mode, err := readFilter(message[netconfHeader:])
		if err != nil {
			return nil, err
		}
		modes = append(modes, mode)
	}
	return modes, err
}

func readFilter(message []byte) (of reversePathFilter, err error) {
	attributes, err := nl.ParseRouteAttr(message)
	if err != nil {
		return of, err
	}
	for _, attribute := range attributes {
		if len(attribute.Value) < 4 {
			continue
		}
		switch value := int(int32(nl.NativeEndian().Uint32(attribute.Value))); attribute.Attr.Type {
		case netconfIndex:
			of.index = value
		case netconfRPFilter:
			of.mode = value
		}
	}
	return of, nil
}

// judgeFilter finds NICs that drop what other nodes send by their path: their pods'
// packets, and those of overlays, come from addresses that the routes have on the NIC that
// the cluster network uses. That one may be strict.
func (p *Path) judgeFilter(all []*candidate, used map[int]bool) {
	isIPv4 := func(prefix netip.Prefix) bool { return prefix.Addr().Is4() }
	isStrict := slices.ContainsFunc(all, func(c *candidate) bool { return c.Index == p.Index && c.strict })
	if !isStrict || !p.Usable || used[p.Index] || !slices.ContainsFunc(p.Addresses, isIPv4) {
		return
	}
	p.Usable = false
	p.complain(fmt.Sprintf("drops packets from addresses of other NICs' networks: set net.ipv4.conf.%s.rp_filter to 2", p.NIC.Name))
}
