// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/internal/testutil"
)

// both runs from_uplink on the segment as the other pod would send it, then
// to_uplink on it as the pod sends it, and returns the verdict of to_uplink.
func (n *node) both(t testutil.TB, s segment) verdict {
	t.Helper()
	n.ingress(t, green, s.flip().frame())
	return n.egress(t, blue, s.frame())
}

// form is a change of segments of one version of IP; 0 for both.
type form struct {
	version int
	change  func(*segment)
}

// unlike are changes that make of a SYN that begins a flow one that does not.
var unlike = map[string]form{
	"no TCP but UDP":                      {0, func(s *segment) { s.protocol = protocolUDP }},
	"no TCP but ICMP":                     {0, func(s *segment) { s.protocol = 1 }},
	"the first fragment":                  {4, func(s *segment) { s.fragment = 0x2000 }},
	"the last fragment":                   {4, func(s *segment) { s.fragment = 0x00b9 }},
	"a fragment in between":               {4, func(s *segment) { s.fragment = 0x20b9 }},
	"a VLAN tag":                          {0, func(s *segment) { s.vlan = 10 }},
	"a VLAN tag of priority":              {0, func(s *segment) { s.vlan = 0x6000 }},
	"a TCP header of no length":           {0, func(s *segment) { s.doff = pointer(0) }},
	"a TCP header that is too short":      {0, func(s *segment) { s.doff = pointer(4) }},
	"a TCP header longer than the packet": {0, func(s *segment) { s.doff = pointer(15) }},
	"an IP header of no length":           {4, func(s *segment) { s.ihl = pointer(0) }},
	"an IP header that is too short":      {4, func(s *segment) { s.ihl = pointer(4) }},
	"an IP header longer than the packet": {4, func(s *segment) { s.ihl = pointer(15); s.options = nil }},
}

// behind puts the segment behind the extension headers.
func behind(chain packettest.Chain) func(*segment) {
	return func(s *segment) { s.extensions, s.protocol = chain.Extensions, chain.Protocol }
}

// unlikeSYN are changes that leave a whole TCP segment, which steering passes on
// where there is a flow, and which must not begin one.
var unlikeSYN = map[string]func(*segment){
	"no options":                          func(s *segment) { s.options = nil },
	"no MPTCP":                            func(s *segment) { s.options = usual(nil) },
	"nothing but NOPs":                    func(s *segment) { s.options = slices.Repeat(nop, 40) },
	"an end of options that has a length": func(s *segment) { s.options = slices.Concat(endOfOptions, []byte{2}, capable(1)) },
	"MP_JOIN beyond the header":           func(s *segment) { s.options = join(5)[:8] },
	"the end of options before MPTCP":     func(s *segment) { s.options = slices.Concat(endOfOptions, capable(1)) },
	"an option of length 0":               func(s *segment) { s.options = slices.Concat([]byte{99, 0}, capable(1)) },
	"an option of length 1":               func(s *segment) { s.options = slices.Concat([]byte{99, 1}, capable(1)) },
	"an option beyond the header":         func(s *segment) { s.options = slices.Concat([]byte{99, 9}, capable(1)) },
	"an option that is cut off":           func(s *segment) { s.options = slices.Concat(nop, nop, nop, []byte{30}) },
	"MPTCP beyond the header":             func(s *segment) { s.options = []byte{1, 1, 1, 1, 30, 12, 1, 1} },
	"MPTCP of length 0":                   func(s *segment) { s.options = []byte{30, 0, 1, 1} },
	"MPTCP of length 2":                   func(s *segment) { s.options = []byte{30, 2, 1, 1} },
	"MPTCP of length 3":                   func(s *segment) { s.options = []byte{30, 3, 1, 1} },
	"MP_CAPABLE of version 0":             func(s *segment) { s.options = usual(capable(0)) },
	"MP_CAPABLE of version 2":             func(s *segment) { s.options = usual(capable(2)) },
	"MP_CAPABLE of version 0 with key":    func(s *segment) { s.options = usual(append([]byte{30, 12, 0, 1}, make([]byte, 8)...)) },
	"MP_CAPABLE of an odd length":         func(s *segment) { s.options = usual([]byte{30, 8, 1, 1, 0, 0, 0, 0}) },
	"MP_CAPABLE with a key":               func(s *segment) { s.options = usual(capableWithKey(5)) },
	"MP_JOIN of an odd length":            func(s *segment) { s.options = usual(join(5)[:8]); s.options[21] = 8 },
	"another subtype of MPTCP":            func(s *segment) { s.options = dataSignal() },
	"a flag that makes it an answer":      func(s *segment) { s.flags |= ack },
	"the flags of a data segment":         func(s *segment) { s.flags = ack | psh },
	"the flags of a reset":                func(s *segment) { s.flags = rst },
	"no flags":                            func(s *segment) { s.flags = 0 },
}

func pointer(v uint8) *uint8 { return &v }

func forEachVersion(t *testing.T, f func(t *testing.T, version int, e ends)) {
	for _, version := range versions {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) { f(t, version, endsOf[version]) })
	}
}

func TestWhatIsNoSubflowBeginsNone(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		refused := map[string]segment{}
		for name, c := range unlike {
			if c.version == 0 || c.version == version {
				refused[name] = e.syn(capable(1)).with(c.change)
			}
		}
		for name, chain := range packettest.Chains() {
			if version == 6 && chain.Visibility != packettest.TCPVisible {
				refused[name] = e.syn(capable(1)).with(behind(chain))
			}
		}
		for name, change := range unlikeSYN {
			refused[name] = e.syn(capable(1)).with(change)
		}
		for name, s := range refused {
			t.Run(name, func(t *testing.T) {
				n.reset(t)
				if v := n.both(t, s); v != next {
					t.Errorf("the verdict is %d", v)
				}
				if flows := n.countFlows(t); flows != 0 {
					t.Errorf("%d flows", flows)
				}
			})
		}
	})
}

// What the tests above change begins a flow where it is not changed; so do other
// sound forms of it.
func TestSoundSYNsBeginAFlow(t *testing.T) {
	n := newNode(t)
	long := slices.Concat([]byte{7, 39}, make([]byte, 37), endOfOptions)
	sound := map[string]form{
		"as Linux sends it":               {0, func(*segment) {}},
		"MP_CAPABLE alone":                {0, func(s *segment) { s.options = capable(1) }},
		"MP_CAPABLE with a checksum":      {0, func(s *segment) { s.options = []byte{30, 4, 1, 0x81} }},
		"MP_CAPABLE after 36 NOPs":        {0, func(s *segment) { s.options = append(slices.Repeat(nop, 36), capable(1)...) }},
		"MP_CAPABLE before other options": {0, func(s *segment) { s.options = slices.Concat(capable(1), maximumSize, endOfOptions) }},
		"MP_CAPABLE after unknown ones":   {0, func(s *segment) { s.options = slices.Concat([]byte{253, 6, 1, 2, 3, 4}, nop, nop, capable(1)) }},
		"MP_JOIN":                         {0, func(s *segment) { s.options = usual(join(5)) }},
		"MP_JOIN as backup":               {0, func(s *segment) { s.options = usual(join(5)); s.options[22] |= 1 }},
		"data in the SYN":                 {0, func(s *segment) { s.payload = []byte("fast open") }},
		"congestion flags":                {0, func(s *segment) { s.flags |= 0xc0 }},
		"IP options":                      {4, func(s *segment) { s.ipOptions = []byte{148, 4, 0, 0} }},
		"the longest IP options":          {4, func(s *segment) { s.ipOptions = long }},
		"the bit not to fragment":         {4, func(s *segment) { s.fragment = 0x4000 }},
	}
	for name, chain := range packettest.Chains() {
		if chain.Visibility == packettest.TCPVisible {
			sound["behind "+name] = form{6, behind(chain)}
		}
	}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for name, c := range sound {
			if c.version != 0 && c.version != version {
				continue
			}
			t.Run(name, func(t *testing.T) {
				s := e.syn(capable(1)).with(c.change)
				n.reset(t)
				n.egress(t, blue, s.frame())
				if flow := n.mustFlow(t, s); flow.Role != initiator {
					t.Errorf("the flow is %+v", flow)
				}
				n.reset(t)
				n.ingress(t, green, s.flip().frame())
				if flow := n.mustFlow(t, s); flow.Role != responder || flow.Path != green {
					t.Errorf("the responder's flow is %+v", flow)
				}
			})
		}
	})
}

func TestOtherEtherTypesPass(t *testing.T) {
	n := newNode(t)
	for _, etherType := range []uint16{etherARP, 0x0842, 0x88a8, 0x8847, 0x8864, 0x88cc, 0x0600, 60} {
		for _, version := range versions {
			frame := endsOf[version].syn(capable(1)).frame()
			binary.BigEndian.PutUint16(frame[12:], etherType)
			n.ingress(t, blue, frame)
			if v := n.egress(t, blue, frame); v != next || n.countFlows(t) != 0 {
				t.Errorf("type %#x: verdict %d, %d flows", etherType, v, n.countFlows(t))
			}
		}
	}
}

// shortest is the length of the shortest IP packet that the kernel takes for a
// test run. Shorter ones are tried on the wire.
func shortest(version int) int {
	if version == 6 {
		return etherLength + ipv6Length
	}
	return etherLength + ipv4Length
}

func TestEveryPrefixOfASYNPasses(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for _, option := range [][]byte{capable(1), join(5)} {
			out, in := e.syn(option).frame(), e.syn(option).flip().frame()
			for length := shortest(version); length < len(out); length++ {
				n.ingress(t, blue, in[:length])
				if v := n.egress(t, blue, out[:length]); v != next {
					t.Errorf("%d of %d bytes: the verdict is %d", length, len(out), v)
				}
			}
		}
		if flows := n.countFlows(t); flows != 0 {
			t.Errorf("%d flows", flows)
		}
	})
}

// A flow exists, and what would be steered is cut off within its headers.
func TestEveryPrefixOfTheHeadersPasses(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = n.begin(t, e, green)
		data := e.out().with(func(s *segment) { s.options, s.payload = dataSignal(), make([]byte, 100) })
		frame := data.frame()
		for length := shortest(version); length <= len(frame); length++ {
			expected := next
			if length >= data.headers() {
				expected = redirect
			}
			if v := n.egress(t, blue, frame[:length]); v != expected {
				t.Errorf("%d of %d bytes: the verdict is %d instead of %d", length, len(frame), v, expected)
			}
			n.ingress(t, blue, data.flip().frame()[:length])
		}
	})
}

// The ports and addresses are those of a flow on another NIC.
func TestWhatCannotBeReadIsNotSteered(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e = n.begin(t, e, green)
		if v := n.egress(t, blue, e.out().frame()); v != redirect {
			t.Fatalf("the verdict on the flow's own segment is %d", v)
		}
		for name, c := range unlike {
			if c.version != 0 && c.version != version {
				continue
			}
			if v := n.both(t, e.out().with(c.change)); v != next {
				t.Errorf("%s: the verdict is %d", name, v)
			}
		}
		for name, chain := range packettest.Chains() {
			expected := next
			if chain.Visibility == packettest.TCPVisible {
				expected = redirect
			}
			if version == 4 {
				continue
			}
			if v := n.both(t, e.out().with(behind(chain))); v != expected {
				t.Errorf("%s: the verdict is %d instead of %d", name, v, expected)
			}
		}
	})
}

// begin begins a connection of the pod whose first subflow is on this path, and
// returns its ends. Its key is key.
func (n *node) begin(t testutil.TB, e ends, path uint8) ends {
	t.Helper()
	for range 16 {
		n.egress(t, blue, e.syn(capable(1)).frame())
		if n.mustFlow(t, e.out()).Path == path {
			n.isAnswered(t, e, capableWithKey(key))
			return e
		}
		e = e.port(e.pod.Port() + 1)
	}
	t.Fatalf("none of 16 connections begins on path %d", path)
	return e
}

// With a shorter IP header, what follows is read as another TCP header: here as a
// SYN with MP_CAPABLE that comes from the other pod.
func TestAnIPHeaderThatIsTooShortIsNotRead(t *testing.T) {
	n := newNode(t)
	for length := range uint8(5) {
		n.reset(t)
		frame := endsOf[4].syn(capable(1)).flip().with(func(s *segment) { s.ihl = &length }).frame()
		at := etherLength + int(length)*4
		if length == 4 {
			frame[at+12], frame[at+13] = 6<<4, syn
			copy(frame[at+tcpLength:], capable(1))
		}
		n.ingress(t, green, frame)
		if flows := n.countFlows(t); flows != 0 {
			t.Errorf("a header of %d words: %d flows", length, flows)
		}
	}
}
