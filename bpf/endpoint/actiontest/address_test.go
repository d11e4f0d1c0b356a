// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"braid.dev/braid/bpf/endpoint/actiontest"
)

// announcements are those of both families, with and without port.
func forEachAnnouncement(t *testing.T, f func(t *testing.T, version int, shape func(*segment), announced, echoed []byte)) {
	for _, family := range []int{4, 6} {
		for _, port := range []uint16{0, 8080} {
			t.Run(fmt.Sprintf("an IPv%d address with port %d", family, port), func(t *testing.T) {
				forEach(t, func(t *testing.T, version int, shape func(*segment)) {
					f(t, version, shape, announcement(family, 5, port, false), announcement(family, 5, port, true))
				})
			})
		}
	}
}

// announces is a pure ACK with nothing but timestamps, where they fit, and this.
func announces(version int, option []byte) segment {
	return pureACK(version).with(func(s *segment) {
		s.options = fill(option)
		if len(s.options) <= 28 {
			s.options = append(timestampsOf(7, 8), s.options...)
		}
	})
}

func signalled(s *actiontest.HarnessSubflow) { s.Addresses.Signalled = 3 }

func TestAnAnnouncementIsOverwrittenAlsoWhenItIsRepeated(t *testing.T) {
	h := newHarness(t)
	h.ask(t, fromEndpoint, action{kind: suppressAddAddr})
	forEachAnnouncement(t, func(t *testing.T, version int, shape func(*segment), announced, echoed []byte) {
		h.begin(t, version, signalled)
		s := announces(version, announced).with(shape)
		hidden := s.with(func(s *segment) {
			s.options = bytes.Clone(s.options)
			for i := len(s.options) - len(fill(announced)); i < len(s.options); i++ {
				s.options[i] = 1
			}
		})
		for range 3 {
			out, verdict := h.run(t, fromEndpoint, s.frame())
			mustPass(t, verdict)
			mustBe(t, out, hidden)
		}
		other := announces(version, echoed).with(shape)
		out, verdict := h.run(t, fromEndpoint, other.frame())
		mustPass(t, verdict)
		mustBe(t, out, other)
	})
}

func TestAnAnnouncementBesideDataIsOverwrittenToo(t *testing.T) {
	h := newHarness(t)
	h.ask(t, fromEndpoint, action{kind: suppressAddAddr})
	h.begin(t, 4)
	s := pureACK(4).with(func(s *segment) {
		s.options, s.payload = slices.Concat(announcement(4, 5, 0, false), mapping), []byte("payload")
	})
	out, verdict := h.run(t, fromEndpoint, s.frame())
	mustPass(t, verdict)
	mustBe(t, out, s.with(func(s *segment) { s.options = slices.Concat(bytes.Repeat([]byte{1}, 16), mapping) }))
}

// Without any MPTCP option the receiver would fall back to TCP.
func TestBeforeItsReceiverKnowsMPTCPWorksAnAnnouncementIsMadeVoid(t *testing.T) {
	h := newHarness(t)
	h.ask(t, fromEndpoint, action{kind: suppressAddAddr})
	forEachAnnouncement(t, func(t *testing.T, version int, shape func(*segment), announced, echoed []byte) {
		h.begin(t, version)
		s := announces(version, announced).with(shape)
		out, verdict := h.run(t, fromEndpoint, s.frame())
		mustPass(t, verdict)
		mustBe(t, out, s.with(func(s *segment) {
			s.options = bytes.Clone(s.options)
			from := len(s.options) - len(fill(announced)) + 4
			clear(s.options[from : from+len(announced)-4])
		}))
	})
}

func TestAHiddenAnnouncementIsAnsweredWithAnEchoWhenAskedFor(t *testing.T) {
	h := newHarness(t)
	forEachAnnouncement(t, func(t *testing.T, version int, shape func(*segment), announced, echoed []byte) {
		h.ask(t, fromEndpoint, action{kind: suppressAddAddr, flag: 1})
		h.begin(t, version, signalled)
		h.run(t, fromEndpoint, announces(version, announced).frame())
		s := pureACK(version).flip().with(shape)
		want := s.with(func(s *segment) {
			if len(s.options)+len(fill(echoed)) > 40 {
				s.options = timestampsOf(77, 66)
			}
			s.options = slices.Concat(s.options, fill(echoed))
		})
		out, verdict := h.run(t, toEndpoint, s.frame())
		mustPass(t, verdict)
		mustBe(t, out, want)
		out, _ = h.run(t, toEndpoint, s.frame())
		mustBe(t, out[:len(s.frame())-len(s.trailer)], s)
	})
}

func TestHiddenAddressesAreGivenBackUntilTheyAreEchoed(t *testing.T) {
	h := newHarness(t)
	forEachAnnouncement(t, func(t *testing.T, version int, shape func(*segment), announced, echoed []byte) {
		given := func(s segment) segment {
			return s.with(func(s *segment) {
				switch room := 40 - len(fill(announced)); {
				case len(s.options) <= room:
				case room >= 12:
					s.options = timestampsOf(77, 66)
				default:
					s.options = nil
				}
				s.options = slices.Concat(s.options, fill(announced))
			})
		}
		for name, release := range map[string]func(){
			"when the rule is gone": func() {
				h.ask(t, fromEndpoint, action{})
				h.steps(t, stepUnsettle|stepSettle)
				h.run(t, fromEndpoint, pureACK(version).frame())
				h.steps(t, stepAct|stepSettle)
				h.wait(t, afterTheRule)
			},
			"when another rule says so": func() { h.ask(t, fromEndpoint, action{kind: releaseAddAddr}) },
		} {
			t.Run(name, func(t *testing.T) {
				h.ask(t, fromEndpoint, action{kind: suppressAddAddr})
				h.begin(t, version, signalled)
				h.run(t, fromEndpoint, announces(version, announced).frame())
				s := pureACK(version).with(shape)
				out, _ := h.run(t, fromEndpoint, s.frame())
				mustBe(t, out, s)
				release()
				out, verdict := h.run(t, fromEndpoint, s.frame())
				mustPass(t, verdict)
				mustBe(t, out, given(s))
				out, _ = h.run(t, fromEndpoint, s.frame())
				mustBe(t, out, s)
				h.wait(t, second/10)
				out, _ = h.run(t, fromEndpoint, s.frame())
				mustBe(t, out, given(s))
				h.run(t, toEndpoint, announces(version, echoed).flip().frame())
				h.wait(t, second)
				out, _ = h.run(t, fromEndpoint, s.frame())
				mustBe(t, out, s)
			})
		}
	})
}

func TestAnAddressHiddenOnOneSubflowIsGivenBackOnAnother(t *testing.T) {
	h := newHarness(t)
	h.ask(t, fromEndpoint, action{kind: suppressAddAddr})
	h.begin(t, 4, signalled)
	h.begin(t, 6, signalled)
	announced := announcement(4, 9, 0, false)
	h.run(t, fromEndpoint, announces(4, announced).frame())
	h.ask(t, fromEndpoint, action{kind: releaseAddAddr})
	s := pureACK(6)
	out, _ := h.run(t, fromEndpoint, s.frame())
	mustBe(t, out, s.with(func(s *segment) { s.options = slices.Concat(s.options, announced) }))
}

func TestWhereTheTokenIsUnknownAnAddressStaysWithItsSubflow(t *testing.T) {
	h := newHarness(t)
	tokenless := func(s *actiontest.HarnessSubflow) { s.Token = 0 }
	h.ask(t, fromEndpoint, action{kind: suppressAddAddr})
	h.begin(t, 4, signalled, tokenless)
	h.begin(t, 6, signalled, tokenless)
	announced := announcement(4, 9, 0, false)
	h.run(t, fromEndpoint, announces(4, announced).frame())
	h.ask(t, fromEndpoint, action{kind: releaseAddAddr})
	out, _ := h.run(t, fromEndpoint, pureACK(6).frame())
	mustBe(t, out, pureACK(6))
	out, _ = h.run(t, fromEndpoint, pureACK(4).frame())
	mustBe(t, out, pureACK(4).with(func(s *segment) { s.options = slices.Concat(s.options, announced) }))
}

func TestNothingIsTakenFromACKsThatTheOthersNeed(t *testing.T) {
	h := newHarness(t)
	for name, options := range map[string][]byte{
		"SACK blocks":            slices.Concat(timestampsOf(1, 2), dataACK4, oneSACK),
		"the end of the data":    slices.Concat(timestampsOf(1, 2), finalDSS),
		"a mapping":              slices.Concat(timestampsOf(1, 2), mapping),
		"an option of other use": slices.Concat(timestampsOf(1, 2), dataACK, []byte{253, 4, 9, 9}),
	} {
		t.Run(name, func(t *testing.T) {
			h.ask(t, fromEndpoint, action{kind: suppressAddAddr})
			h.begin(t, 6, signalled)
			h.run(t, fromEndpoint, announces(6, announcement(6, 5, 99, false)).frame())
			h.ask(t, fromEndpoint, action{kind: releaseAddAddr})
			s := pureACK(6).with(func(s *segment) { s.options = options })
			out, verdict := h.run(t, fromEndpoint, s.frame())
			mustPass(t, verdict)
			mustBe(t, out, s)
		})
	}
}
