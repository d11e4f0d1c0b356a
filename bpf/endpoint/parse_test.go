// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"encoding/binary"
	"testing"

	"braid.dev/braid/bpf/packettest"
)

// What is none of our business: whatever the rules say, it passes, and nothing is
// remembered of it.
func TestWhatIsNotOursPasses(t *testing.T) {
	h := newHost(t)
	h.use(t, dropping(nil))
	for _, version := range versions {
		e := endsOf[version]
		network := etherLength
		tcp := network + map[int]int{4: 20, 6: 40}[version]
		for name, c := range map[string]struct {
			change func(*segment)
			frame  func([]byte) []byte
		}{
			"another protocol":                 {change: func(s *segment) { s.protocol = 17 }},
			"a first fragment":                 {change: func(s *segment) { s.fragment = 0x2000 }},
			"a later fragment":                 {change: func(s *segment) { s.fragment = 100 }},
			"a header length below 20":         {frame: func(f []byte) []byte { f[tcp+12] = 4 << 4; return f }},
			"a header longer than the packet":  {frame: func(f []byte) []byte { f[tcp+12] = 15 << 4; return f }},
			"a packet longer than the frame":   {frame: func(f []byte) []byte { return f[:len(f)-1] }},
			"a frame that ends in TCP":         {frame: func(f []byte) []byte { return f[:tcp+19] }},
			"a frame that ends before TCP":     {frame: func(f []byte) []byte { return f[:tcp] }},
			"another Ethernet protocol":        {frame: func(f []byte) []byte { f[12], f[13] = 0x88, 0xb5; return f }},
			"three tags":                       {frame: func(f []byte) []byte { return tagged(tagged(tagged(f))) }},
			"a tag and nothing of TCP":         {frame: func(f []byte) []byte { return tagged(f)[:tcp+4] }},
			"a length that says less than TCP": {frame: func(f []byte) []byte { setLength(f, version, 19); return f }},
		} {
			if version == 6 && c.change != nil && e.out().with(c.change).fragment != 0 {
				continue
			}
			s := e.out().data(8)
			if c.change != nil {
				s = s.with(c.change)
			}
			frame := s.frame()
			if c.frame != nil {
				frame = c.frame(frame)
			}
			for _, program := range h.programs() {
				if v := h.run(t, program, frame, skBuff{Ifindex: h.pod}); v != next {
					t.Errorf("IPv%d, %s: the verdict is %d", version, name, v)
				}
			}
			if h.subflow(t, e) != nil {
				t.Errorf("IPv%d, %s: there is a record", version, name)
			}
		}
	}
}

// tagged is the frame with one more 802.1Q tag.
func tagged(frame []byte) []byte {
	return append(append(append([]byte{}, frame[:12]...), 0x81, 0, 0, 5), frame[12:]...)
}

// setLength makes the IP header say how long the TCP segment is.
func setLength(frame []byte, version int, tcp uint16) {
	if version == 4 {
		binary.BigEndian.PutUint16(frame[etherLength+2:], 20+tcp)
	} else {
		binary.BigEndian.PutUint16(frame[etherLength+4:], tcp)
	}
}

// behind puts the segment behind the extension headers.
func behind(chain packettest.Chain) func(*segment) {
	return func(s *segment) { s.extensions, s.protocol = chain.Extensions, chain.Protocol }
}

// Rules hold behind extension headers as far as programs read; beyond, and for what is
// no TCP, packets pass.
func TestRulesHoldBehindExtensionHeaders(t *testing.T) {
	h := newHost(t)
	e := endsOf[6]
	for name, chain := range packettest.Chains() {
		t.Run(name, func(t *testing.T) {
			h.forget(t)
			h.use(t, dropping(all(is(port(selectDestinationPort, 80)), is(prefix(selectSourceAddress, cidr(e.local.Addr(), 32, 128))))))
			visible := chain.Visibility == packettest.TCPVisible
			for _, tags := range []int{0, 1, 2} {
				s := e.out().data(100).with(behind(chain))
				frame := s.frame()
				for range tags {
					frame = tagged(frame)
				}
				if v := h.run(t, h.from, frame, skBuff{Ifindex: h.pod}); (v == dropped) != visible {
					t.Errorf("with %d tags the verdict is %d", tags, v)
				}
			}
			if record := h.subflow(t, e); (record != nil) != visible || visible && record.Traffic[0].Bytes != 300 {
				t.Errorf("the record is %+v", record)
			}
		})
	}
}

// Whatever is cut off, nothing is read beyond it.
func TestTruncatedExtensionHeadersPass(t *testing.T) {
	h := newHost(t)
	h.use(t, dropping(nil))
	for _, chain := range packettest.Chains() {
		frame := endsOf[6].out().with(behind(chain)).frame()
		for length := etherLength + 40; length < len(frame); length++ {
			if v := h.run(t, h.from, frame[:length], skBuff{Ifindex: h.pod}); v != next {
				t.Errorf("%d bytes got the verdict %d", length, v)
			}
		}
	}
}

// The same packet in other clothes.
func TestWhatIsOursInOtherClothes(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		for name, change := range map[string]func(*segment){
			"as it is":                func(*segment) {},
			"with a VLAN tag":         func(s *segment) { s.vlan = 5 },
			"with IP options":         func(s *segment) { s.ipOptions = []byte{7, 7, 4, 0, 0, 0, 0, 0} },
			"with all IP options":     func(s *segment) { s.ipOptions = make([]byte, 40) },
			"padded":                  func(s *segment) { s.padding = 6 },
			"tagged, with options":    func(s *segment) { s.vlan, s.ipOptions, s.options = 5, make([]byte, 40), sack(3) },
			"don't fragment":          func(s *segment) { s.fragment = 0x4000 },
			"with all TCP options":    func(s *segment) { s.options = append(timestamps(1, 1), sack(3)...) },
			"with options to the end": func(s *segment) { s.options, s.payload = sack(4), nil },
		} {
			t.Run(name, func(t *testing.T) {
				h.forget(t)
				h.use(t, dropping(all(is(port(selectDestinationPort, 80)), is(prefix(selectSourceAddress, cidr(e.local.Addr(), 32, 128))))))
				s := e.out().data(100).with(change)
				h.expect(t, e, s, true, "sent")
				record := h.mustSubflow(t, e)
				if got := record.Traffic[0].Bytes; got != uint64(len(s.payload)) {
					t.Errorf("%d bytes of payload, expected %d", got, len(s.payload))
				}
			})
		}
	})
}

// A tagged packet's options are where the tag has moved them.
func TestOptionsBehindATag(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.use(t, dropping(is(types(typePriority))))
		s := e.out().carrying(timestamps(1, 1), dataAck(), priority(1)).with(func(s *segment) { s.vlan = 7 })
		h.expect(t, e, s, true, "MP_PRIO behind a tag")
	})
}

func TestGSOPacketsCountAsTheirSegments(t *testing.T) {
	h := newHost(t)
	forEachVersion(t, func(t *testing.T, e ends) {
		h.forget(t)
		h.use(t, build(rule{do: noops(1)}))
		frame := e.out().data(2400).frame()
		h.run(t, h.from, frame, skBuff{Ifindex: h.pod, GSOSegs: 3, GSOSize: 800})
		traffic := h.mustSubflow(t, e).Traffic[0]
		if traffic.Packets != 3 || traffic.Bytes != 2400 || traffic.Position != 2400 {
			t.Errorf("the record has %d packets, %d bytes, position %d", traffic.Packets, traffic.Bytes, traffic.Position)
		}
		counters := h.counters(t)
		if counters.Rule[0].Hits != 1 || counters.Rule[0].Bytes != 2400 {
			t.Errorf("the counters are %+v", counters.Rule[0])
		}
	})
}

// BIG TCP leaves the field of the length empty.
func TestLengthsThatDoNotFitTheirField(t *testing.T) {
	h := newHost(t)
	for _, version := range versions {
		e := endsOf[version]
		h.use(t, build(rule{do: noops(1)}))
		frame := e.out().data(2400).frame()
		if version == 4 {
			copy(frame[etherLength+2:], []byte{0, 0})
		} else {
			copy(frame[etherLength+4:], []byte{0, 0})
		}
		h.run(t, h.from, frame, skBuff{Ifindex: h.pod})
		if got := h.mustSubflow(t, e).Traffic[0].Bytes; got != 2400 {
			t.Errorf("IPv%d: %d bytes", version, got)
		}
	}
}

func TestTruncatedFramesPass(t *testing.T) {
	h := newHost(t)
	h.use(t, dropping(is(types(typeDSS))))
	for _, version := range versions {
		frame := endsOf[version].out().carrying(timestamps(1, 1), mapping(1, 1, 50)).data(50).frame()
		for length := range frame {
			if !takesTestRun(frame[:length]) {
				continue
			}
			for _, program := range h.programs() {
				if v := h.run(t, program, frame[:length], skBuff{Ifindex: h.pod}); v != next {
					t.Errorf("%d bytes got the verdict %d", length, v)
				}
			}
		}
	}
}
