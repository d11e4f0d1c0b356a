// SPDX-License-Identifier: Apache-2.0

package endpoint_test

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
)

func (h *host) programs() [2]*ebpf.Program { return [2]*ebpf.Program{h.from, h.to} }

// largestTestRun is the longest frame that every kernel takes for a test run.
const largestTestRun = 3000

// takesTestRun tells whether the kernel runs a program on the frame.
func takesTestRun(frame []byte) bool {
	if len(frame) < etherLength+1 || len(frame) > largestTestRun {
		return false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		return len(frame) >= etherLength+20
	case etherIPv6:
		return len(frame) >= etherLength+40
	}
	return true
}

// looking is a chain with every selector, and no action that changes anything.
func looking() *rule {
	return &rule{do: append(noops(1), action{Kind: actionRecord}, action{Kind: actionReportSubflow}, action{Kind: actionReportConnection})}
}

// FuzzRun feeds whole runs with any frames: nothing in a packet changes and none
// is lost as long as no rule says so.
func FuzzRun(f *testing.F) {
	h := newHost(f)
	selectors := []selector{
		token(tokenOf(remoteKey)), prefix(selectSourceAddress, "10.0.0.0/8"), port(selectDestinationPort, 80), path(blue),
		types(^uint32(0)), within(selectDataSequence, 0, 1<<40), within(selectSubflowSequence, 0, 1<<40),
		within(selectSubflowSent, 0, 1000), within(selectConnectionSent, 0, 1000), {Kind: selectBackup, Mask: 1},
	}
	var rules []rule
	for _, s := range selectors {
		r := *looking()
		r.when = is(s)
		rules = append(rules, r)
	}
	h.use(f, build(rules...))
	for _, version := range versions {
		e := endsOf[version]
		h.begin(f, e)
		for _, c := range packetsOfAllTypes(e) {
			for _, change := range []func(*segment){
				func(*segment) {}, func(s *segment) { s.from, s.to = s.to, s.from }, func(s *segment) { s.vlan = 3 },
				func(s *segment) { s.ipOptions = make([]byte, 8) }, func(s *segment) { s.padding = 5 }, func(s *segment) { s.protocol = 17 },
			} {
				f.Add(byte(0), c.segment.with(change).frame())
				f.Add(byte(1), c.segment.with(change).frame())
			}
		}
	}
	f.Fuzz(func(t *testing.T, direction byte, frame []byte) {
		if !takesTestRun(frame) {
			return
		}
		context := skBuff{Ifindex: h.pod, IngressIfindex: h.nics[direction>>1&1]}
		if v := h.run(t, h.programs()[direction&1], frame, context); v != next {
			t.Errorf("the verdict is %d", v)
		}
	})
}
