// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"net/netip"
	"testing"

	"braid.dev/braid/bpf/packettest"
)

// segment is one of TCP from an endpoint to a peer.
func segment(ipv4 bool) packettest.Segment {
	from := map[bool]netip.Addr{true: addressesOf[one][0], false: addressesOf[one][1]}[ipv4]
	return packettest.Segment{From: netip.AddrPortFrom(from, 40000), To: netip.AddrPortFrom(peers[ipv4], 80), Flags: 2, Payload: make([]byte, 100)}
}

// frameOf is the segment with a change.
func frameOf(ipv4 bool, change func(*packettest.Segment)) []byte {
	s := segment(ipv4)
	change(&s)
	return s.Frame()
}

// unparsableFrames are frames, and whether they are dropped.
func unparsableFrames() map[string]struct {
	frame   []byte
	dropped bool
} {
	type judged = struct {
		frame   []byte
		dropped bool
	}
	tags := func(frame []byte, count int) []byte {
		for range count {
			frame = append(append(append([]byte{}, frame[:12]...), 0x81, 0, 0, 5), frame[12:]...)
		}
		return frame
	}
	ipv4 := func(change func(*packettest.Segment)) []byte { return frameOf(true, change) }
	plain := ipv4(func(*packettest.Segment) {})
	longer, shorter := uint8(15), uint8(4)
	frames := map[string]judged{
		"IPv4":                       {plain, false},
		"IPv4 with options":          {ipv4(func(s *packettest.Segment) { s.IPOptions = make([]byte, 40) }), false},
		"the first fragment":         {ipv4(func(s *packettest.Segment) { s.Fragment = 0x2000 }), true},
		"a later fragment":           {ipv4(func(s *packettest.Segment) { s.Fragment = 0x2001 }), true},
		"the last fragment":          {ipv4(func(s *packettest.Segment) { s.Fragment = 0x0064 }), true},
		"a fragment of UDP":          {ipv4(func(s *packettest.Segment) { s.Fragment, s.Protocol = 0x2000, packettest.UDP }), false},
		"a later fragment of UDP":    {ipv4(func(s *packettest.Segment) { s.Fragment, s.Protocol = 0x0064, packettest.UDP }), false},
		"a fragment behind a tag":    {tags(ipv4(func(s *packettest.Segment) { s.Fragment = 0x2000 }), 1), true},
		"a fragment behind two tags": {tags(ipv4(func(s *packettest.Segment) { s.Fragment = 0x2000 }), 2), true},
		"two tags":                   {tags(plain, 2), false},
		"three tags":                 {tags(plain, 3), true},
		"IPv4 encrypted":             {ipv4(func(s *packettest.Segment) { s.Protocol = packettest.ESP }), true},
		"IPv4 authenticated":         {ipv4(func(s *packettest.Segment) { s.Protocol = packettest.AH }), true},
		"IPv4's UDP":                 {ipv4(func(s *packettest.Segment) { s.Protocol = packettest.UDP }), false},
		"IPv4's ICMP":                {ipv4(func(s *packettest.Segment) { s.Protocol = 1 }), false},
		"cut off within TCP":         {plain[:14+20+19], true},
		"cut off behind IPv4":        {plain[:14+20], true},
		"cut off within the payload": {plain[:len(plain)-1], true},
		"TCP's header beyond IP":     {ipv4(func(s *packettest.Segment) { s.DataOffset, s.Payload = &longer, nil }), true},
		"TCP's header too short":     {ipv4(func(s *packettest.Segment) { s.DataOffset = &shorter }), true},
		"IPv4's header too short":    {ipv4(func(s *packettest.Segment) { s.HeaderLength = &shorter }), true},
		"a frame with a trailer":     {ipv4(func(s *packettest.Segment) { s.Trailer = make([]byte, 6) }), false},
		"ARP":                        {arp(addressesOf[one][0]), false},
		"IPv6's UDP":                 {whole(addressesOf[one][1], 100), false},
	}
	for name, chain := range packettest.Chains() {
		frame := frameOf(false, func(s *packettest.Segment) { s.Extensions, s.Protocol = chain.Extensions, chain.Protocol })
		dropped := chain.Visibility == packettest.Unparsable
		frames["IPv6, "+name], frames["IPv6 behind two tags, "+name] = judged{frame, dropped}, judged{tags(frame, 2), dropped}
		if chain.Visibility == packettest.TCPVisible {
			frames["IPv6, cut off, "+name] = judged{frame[:len(frame)-101], true}
		}
	}
	return frames
}

func TestWhatNoRuleSeesIsDropped(t *testing.T) {
	n := newNode(t)
	for name, test := range unparsableFrames() {
		before := n.usage(t, one).UnparsablePackets
		v := n.run(t, n.unparsable, test.frame, skBuff{Ifindex: n.ends[one]})
		if (v == dropped) != test.dropped {
			t.Errorf("%s: the verdict is %d", name, v)
		}
		if counted := n.usage(t, one).UnparsablePackets - before; (counted == 1) != test.dropped {
			t.Errorf("%s: it was counted %d times", name, counted)
		}
	}
}

// It is attached only where packets are to be dropped: limits fail closed.
func TestWhatNoRuleSeesIsDroppedWithoutARow(t *testing.T) {
	n := newNode(t)
	frame := frameOf(true, func(s *packettest.Segment) { s.Fragment = 0x2000 })
	if v := n.run(t, n.unparsable, frame, skBuff{Ifindex: n.nic}); v != dropped {
		t.Errorf("the verdict is %d", v)
	}
}
