// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"net/netip"
	"testing"

	"braid.dev/braid/bpf/guard"
)

func TestSourcesOfAnEndpoint(t *testing.T) {
	n := newNode(t)
	n.allow(t, one, guard.MeterAllowance{Flags: 1})
	own, foreign := addressesOf[one], addressesOf[two]
	ip := netip.MustParseAddr
	for name, test := range map[string]struct {
		frame    []byte
		expected verdict
	}{
		"its IPv4 address":               {whole(own[0], 100), next},
		"its IPv6 address":               {whole(own[1], 100), next},
		"another pod's IPv4 address":     {whole(foreign[0], 100), dropped},
		"another pod's IPv6 address":     {whole(foreign[1], 100), dropped},
		"a node's address":               {whole(ip("10.20.0.1"), 100), dropped},
		"a stranger's IPv6 address":      {whole(ip("2001:db8::1"), 100), dropped},
		"loopback":                       {whole(ip("127.0.0.1"), 100), dropped},
		"IPv6's loopback":                {whole(ip("::1"), 100), dropped},
		"its IPv4 address mapped":        {datagram{from: netip.AddrFrom16(own[0].As16()), size: 60}.frame6(), dropped},
		"link-local IPv6":                {whole(ip("fe80::1234"), 100), next},
		"no address yet, IPv6":           {whole(ip("::"), 100), next},
		"no address yet, IPv4":           {whole(ip("0.0.0.0"), 100), next},
		"ARP":                            {arp(foreign[0]), next},
		"its address in a VLAN":          {datagram{from: own[0], size: 60, tags: []uint16{etherVLAN}}.frame(), next},
		"another's in a VLAN":            {datagram{from: foreign[0], size: 60, tags: []uint16{etherVLAN}}.frame(), dropped},
		"another's in two VLANs":         {datagram{from: foreign[1], size: 60, tags: []uint16{etherQinQ, etherVLAN}}.frame(), dropped},
		"whatever behind more tags":      {datagram{from: own[0], size: 60, tags: []uint16{etherVLAN, etherVLAN, etherVLAN}}.frame(), dropped},
		"another's with IPv4 options":    {datagram{from: foreign[0], size: 60, options: 40}.frame(), dropped},
		"a later fragment of another's":  {datagram{from: foreign[0], size: 60, fragment: 0x00b9}.frame(), dropped},
		"a later fragment of its own":    {datagram{from: own[0], size: 60, fragment: 0x00b9}.frame(), next},
		"a packet of another's, in part": {whole(foreign[0], 100)[:14+20], dropped},
	} {
		t.Run(name, func(t *testing.T) {
			before := n.usage(t, one).SpoofedPackets
			v := n.run(t, n.source, test.frame, skBuff{Ifindex: n.ends[one]})
			if v != test.expected {
				t.Errorf("the verdict is %d instead of %d", v, test.expected)
			}
			if counted := n.usage(t, one).SpoofedPackets > before; counted != (v == dropped) {
				t.Errorf("it was counted: %t", counted)
			}
		})
	}
}

// frame6 is an IPv6 frame, also from an IPv4 address in its mapped form.
func (d datagram) frame6() []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd}
	return append(frame, d.ipv6()...)
}

func TestSourcesOfEndpointsThatMayUseAnyPass(t *testing.T) {
	n := newNode(t)
	n.allow(t, one, guard.MeterAllowance{Flags: 1})
	for name, index := range map[string]uint32{"one that routes for others": n.ends[two], "an interface of nobody": n.nic} {
		if v := n.run(t, n.source, whole(addressesOf[three][0], 100), skBuff{Ifindex: index}); v != next {
			t.Errorf("%s: the verdict is %d", name, v)
		}
	}
}
