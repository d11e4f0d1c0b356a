// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"braid.dev/braid/bpf/endpoint/actiontest"
	"braid.dev/braid/bpf/packettest"
)

// shapes are the frames in which a segment may come.
var shapes = map[string]func(*segment){
	"a plain frame":                  func(*segment) {},
	"a frame with a VLAN tag":        func(s *segment) { s.vlan = 12 },
	"a frame with IP options":        func(s *segment) { s.ipOptions = ipOptionsOf(*s) },
	"a frame with a trailer":         func(s *segment) { s.trailer = []byte{1, 2, 3, 4, 5, 6} },
	"a tagged frame with IP options": func(s *segment) { s.vlan, s.ipOptions = 13, ipOptionsOf(*s) },
	"a frame with extension headers": func(s *segment) { s.extensions = extensions },
}

var extensions = []packettest.Extension{
	packettest.Options(packettest.HopByHop, 1), packettest.Options(packettest.DestinationOptions, 12), packettest.Route(0), packettest.Piece(0, false),
}

func ipOptionsOf(s segment) []byte {
	if s.isIPv6() {
		return nil
	}
	return []byte{7, 7, 4, 0, 0, 0, 0, 0}
}

// forEach runs a test for both families in every shape.
func forEach(t *testing.T, f func(t *testing.T, version int, shape func(*segment))) {
	for _, version := range []int{4, 6} {
		for name, shape := range shapes {
			t.Run(fmt.Sprintf("IPv%d/%s", version, name), func(t *testing.T) { f(t, version, shape) })
		}
	}
}

// mustBe compares a frame that came out with the segment that it should be. A
// trailer is cut off where the packet grew.
func mustBe(t *testing.T, got []byte, want segment) {
	t.Helper()
	want.trailer = nil
	if l, ok := lay(got); ok {
		ip, tcp := residues(got, l)
		if ip != 0xffff || tcp != 0xffff {
			t.Errorf("wrong checksums: IP %#x, TCP %#x", ip, tcp)
		}
		got = got[:l.packetEnd]
	}
	if !bytes.Equal(got, want.frame()) {
		t.Errorf("got\n%x instead of\n%x", got, want.frame())
	}
}

func mustPass(t *testing.T, verdict int) {
	t.Helper()
	if verdict != next {
		t.Fatalf("the verdict is %d", verdict)
	}
}

func TestAWindowIsLoweredToWhatTheRateLetsBeInFlight(t *testing.T) {
	h := newHarness(t)
	forEach(t, func(t *testing.T, version int, shape func(*segment)) {
		h.begin(t, version)
		h.ask(t, toEndpoint, action{kind: rateLimit, mechanism: window, rate: 2_500_000})
		data := pureACK(version).flip().with(func(s *segment) { s.options = nil; s.payload = []byte("some data"); shape(s) })
		out, verdict := h.run(t, toEndpoint, data.frame())
		mustPass(t, verdict)
		mustBe(t, out, data)
		s := pureACK(version).with(shape)
		out, verdict = h.run(t, fromEndpoint, s.frame())
		mustPass(t, verdict)
		// 2.5 MB/s * 10 ms, in units of 128 bytes, rounded up.
		mustBe(t, out, s.with(func(s *segment) { s.window = (25_000 + 127) / 128 }))
	})
}

func TestAWindowIsNeverRaisedNorThatOfASYNTouched(t *testing.T) {
	h := newHarness(t)
	for name, change := range map[string]func(*segment){
		"a window below the limit":        func(s *segment) { s.window = 100 },
		"a window of zero":                func(s *segment) { s.window = 0 },
		"a SYN/ACK":                       func(s *segment) { s.flags |= syn },
		"a reset":                         func(s *segment) { s.flags |= rst },
		"a segment without an ACK's flag": func(s *segment) { s.flags = psh },
	} {
		t.Run(name, func(t *testing.T) {
			h.begin(t, 4, limited(action{kind: rateLimit, mechanism: window, rate: 2_500_000}))
			h.ask(t, fromEndpoint, action{})
			s := pureACK(4).with(change)
			out, verdict := h.run(t, fromEndpoint, s.frame())
			mustPass(t, verdict)
			mustBe(t, out, s)
		})
	}
}

// limited gives a record a limit on what comes to the endpoint.
func limited(a action) func(*actiontest.HarnessSubflow) {
	return func(s *actiontest.HarnessSubflow) {
		s.Engaged = 1
		s.Limit[toEndpoint].Rate, s.Limit[toEndpoint].Mechanism = a.rate, a.mechanism
		s.Limit[toEndpoint].Id, s.Limit[toEndpoint].Scope = a.limit, a.scope
	}
}

func TestAWindowIsNeverSmallerThanTwoSegmentsSoThatTheSenderGoesOn(t *testing.T) {
	h := newHarness(t)
	h.begin(t, 4, limited(action{mechanism: window, rate: 1000}))
	out, _ := h.run(t, fromEndpoint, pureACK(4).frame())
	mustBe(t, out, pureACK(4).with(func(s *segment) { s.window = (2*1460 + 127) / 128 }))
}

// The mechanisms' and the reasons' numbers, as Auto finds them.
func TestTheMechanismDependsOnWhatIsKnown(t *testing.T) {
	const (
		asked = iota + 1
		ownSocket
		noSocket
		noSYN
		shortRTT
		noRTT
	)
	forget := func(s *actiontest.HarnessSubflow) { s.Traffic[0].WindowScale, s.Traffic[1].WindowScale = 0, 0 }
	rtt := func(us uint32) func(*actiontest.HarnessSubflow) {
		return func(s *actiontest.HarnessSubflow) { s.Traffic[0].MinimumRtt, s.Traffic[1].MinimumRtt = us, 0 }
	}
	paced := func(s *actiontest.HarnessSubflow) { s.Paced = 1000 }
	h := newHarness(t)
	for name, c := range map[string]struct {
		direction    int
		mechanism    uint8
		record       func(*actiontest.HarnessSubflow)
		inUse, whyIs uint8
	}{
		"Auto paces where the sender's socket is paced":            {fromEndpoint, auto, paced, pace, ownSocket},
		"Auto does not pace what comes to the endpoint":            {toEndpoint, auto, paced, window, noSocket},
		"Auto uses windows for strangers":                          {toEndpoint, auto, rtt(2000), window, noSocket},
		"Auto polices where the SYN was not seen":                  {toEndpoint, auto, forget, police, noSYN},
		"Auto polices where the RTT is short":                      {toEndpoint, auto, rtt(1999), police, shortRTT},
		"Auto uses windows before the first RTT":                   {toEndpoint, auto, rtt(0), window, noRTT},
		"Window as asked, also where the RTT is short":             {toEndpoint, window, rtt(300), window, asked},
		"Window cannot be where the SYN was not seen":              {toEndpoint, window, forget, 0, noSYN},
		"Window as asked, also before the first RTT":               {toEndpoint, window, rtt(0), window, asked},
		"Police as asked":                                          {fromEndpoint, police, forget, police, asked},
		"Pace as asked":                                            {fromEndpoint, pace, paced, pace, asked},
		"Pace cannot be where the sender's socket is not paced":    {fromEndpoint, pace, rtt(1), 0, noSocket},
		"Pace cannot be for what strangers send to the endpoint":   {toEndpoint, pace, paced, 0, noSocket},
		"Auto takes the agent's RTT where no packet was timed yet": {toEndpoint, auto, func(s *actiontest.HarnessSubflow) { rtt(0)(s); s.SeededRtt = 9000 }, window, noSocket},
	} {
		t.Run(name, func(t *testing.T) {
			h.begin(t, 4, c.record)
			h.ask(t, c.direction, action{kind: rateLimit, mechanism: c.mechanism, rate: 10_000_000, limit: 3})
			s := pureACK(4)
			if c.direction == toEndpoint {
				s = s.flip()
			}
			_, verdict := h.run(t, c.direction, s.frame())
			mustPass(t, verdict)
			limit := h.subflow(t, 4).Limit[c.direction]
			if limit.InUse != c.inUse || limit.Why != c.whyIs {
				t.Errorf("mechanism %d because of %d instead of %d because of %d", limit.InUse, limit.Why, c.inUse, c.whyIs)
			}
		})
	}
}

func TestTheLowestOfSeveralLimitsHolds(t *testing.T) {
	h := newHarness(t)
	h.begin(t, 4)
	for _, rate := range []uint64{5_000_000, 9_000_000, 2_000_000, 3_000_000} {
		h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: police, rate: rate})
		h.run(t, fromEndpoint, pureACK(4).frame())
	}
	if rate := h.subflow(t, 4).Limit[fromEndpoint].Rate; rate != 2_000_000 {
		t.Errorf("the limit is %d", rate)
	}
}

// scopes are those of limits, with a second subflow that shares them or not.
func TestPolicingDropsDataBeyondTheRateAndNothingElse(t *testing.T) {
	for scope, name := range []string{"of a subflow", "of a connection", "of an endpoint"} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.begin(t, 4)
			h.begin(t, 6)
			h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: police, scope: uint8(scope), rate: 100_000, limit: 1})
			data := func(version int) []byte {
				return pureACK(version).with(func(s *segment) { s.payload = make([]byte, 1000) }).frame()
			}
			// A burst of 64 KiB, and what comes in while it lasts.
			passed := h.countPassed(t, data(4), 200)
			if passed < 65 || passed > 90 {
				t.Errorf("of 200 kB at once %d kB passed", passed)
			}
			if others := h.countPassed(t, data(6), 10); (others == 10) != (scope == 0) {
				t.Errorf("%d of 10 segments of another subflow passed", others)
			}
			for name, change := range map[string]func(*segment){
				"a pure ACK": func(s *segment) { s.payload = nil },
				"a SYN":      func(s *segment) { s.flags = syn; s.payload = []byte("fast open") },
				"a FIN":      func(s *segment) { s.flags |= fin; s.payload = []byte("last words") },
				"a reset":    func(s *segment) { s.flags |= rst; s.payload = []byte("why") },
			} {
				if h.countPassed(t, pureACK(4).with(change).frame(), 5) != 5 {
					t.Errorf("%s was dropped", name)
				}
			}
		})
	}
}

// Known from the SYN to be a subflow of MPTCP.
func isMPTCP(s *actiontest.HarnessSubflow) { s.Known |= 1 << 2 }

func TestDataBeyondTheWindowIsLostOnceInARoundTrip(t *testing.T) {
	for name, test := range map[string]struct {
		change  []func(*actiontest.HarnessSubflow)
		dropped int
	}{
		"of a subflow":          {[]func(*actiontest.HarnessSubflow){isMPTCP}, 1},
		"of a TCP connection":   {nil, 0},
		"while no RTT is known": {[]func(*actiontest.HarnessSubflow){isMPTCP, func(s *actiontest.HarnessSubflow) { s.Traffic[0].MinimumRtt = 0 }}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.begin(t, 4, append(test.change, func(s *actiontest.HarnessSubflow) {
				s.Traffic[fromEndpoint].Highest = 1_000_000
				s.Window[fromEndpoint].Begun, s.Window[fromEndpoint].Acknowledged = 1, 1_000_000-20_000
				s.Window[fromEndpoint].Window = 5000
			})...)
			h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: window, rate: 500_000})
			data := pureACK(4).with(func(s *segment) { s.payload = make([]byte, 1000) })
			if passed := h.countPassed(t, data.frame(), 10); passed != 10-test.dropped {
				t.Errorf("%d of 10 segments passed", passed)
			}
			if passed := h.countPassed(t, pureACK(4).frame(), 5); passed != 5 {
				t.Errorf("%d of 5 pure ACKs passed", passed)
			}
		})
	}
}

// A bucket at a low rate is as deep as at others.
func TestALowRateIsPolicedToo(t *testing.T) {
	h := newHarness(t)
	h.begin(t, 4)
	h.ask(t, fromEndpoint, action{kind: rateLimit, mechanism: police, rate: 1000})
	data := pureACK(4).with(func(s *segment) { s.payload = make([]byte, 1000) }).frame()
	if passed := h.countPassed(t, data, 150); passed < 65 || passed > 70 {
		t.Errorf("of 150 kB at once %d kB passed", passed)
	}
}

func (h *harness) countPassed(t *testing.T, frame []byte, times int) (passed int) {
	t.Helper()
	for range times {
		out, verdict := h.run(t, fromEndpoint, frame)
		if !bytes.Equal(out, frame) {
			t.Fatal("policing changed a packet")
		}
		if verdict == next {
			passed++
		}
	}
	return passed
}

func TestPureACKsTellEachEndToMakeTheSubflowABackup(t *testing.T) {
	h := newHarness(t)
	forEach(t, func(t *testing.T, version int, shape func(*segment)) {
		for direction, turn := range []func(segment) segment{func(s segment) segment { return s }, segment.flip} {
			for flag, say := range [][]byte{sayNormal, sayBackup} {
				h.begin(t, version)
				h.ask(t, direction, action{kind: setBackup, flag: uint8(flag)})
				s := turn(pureACK(version)).with(shape)
				out, verdict := h.run(t, direction, s.frame())
				mustPass(t, verdict)
				mustBe(t, out, s.with(func(s *segment) { s.options = slices.Concat(s.options, say) }))
			}
		}
	})
}

// carriers are the options that a pure ACK may have, and whether there is room for
// one word more.
var carriers = map[string]struct {
	options []byte
	room    bool
}{
	"timestamps and a data ACK":       {slices.Concat(timestampsOf(1, 2), dataACK), true},
	"a short data ACK":                {dataACK4, true},
	"one SACK block":                  {slices.Concat(timestampsOf(1, 2), dataACK, oneSACK), true},
	"two SACK blocks":                 {slices.Concat(timestampsOf(1, 2), dataACK4, twoSACKs), false},
	"options that end before the end": {slices.Concat(timestampsOf(1, 2), dataACK4, []byte{0, 0, 0, 0}), true},
	"an end mark behind a NOP":        {slices.Concat(timestampsOf(1, 2), dataACK4, []byte{1, 1, 1, 0}), true},
}

func TestPrioritiesAreToldWhereThereIsRoom(t *testing.T) {
	h := newHarness(t)
	for name, c := range carriers {
		t.Run(name, func(t *testing.T) {
			for _, version := range []int{4, 6} {
				h.begin(t, version)
				h.ask(t, fromEndpoint, action{kind: setBackup, flag: 1})
				s := pureACK(version).with(func(s *segment) { s.options = c.options })
				out, verdict := h.run(t, fromEndpoint, s.frame())
				mustPass(t, verdict)
				if !c.room {
					mustBe(t, out, s)
					continue
				}
				mustBe(t, out, s.with(func(s *segment) { s.options = slices.Concat(withoutEnd(s.options), sayBackup) }))
			}
		})
	}
}

// withoutEnd has NOPs in the place of an end mark and what follows it.
func withoutEnd(options []byte) []byte {
	options = slices.Clone(options)
	for at := 0; at < len(options); {
		switch {
		case options[at] == 0:
			for ; at < len(options); at++ {
				options[at] = 1
			}
		case options[at] == 1:
			at++
		default:
			at += int(options[at+1])
		}
	}
	return options
}

// unable are packets that no option may go into.
var unable = map[string]func(*segment){
	"data":                       func(s *segment) { s.payload = []byte("payload") },
	"a SYN":                      func(s *segment) { s.flags = syn },
	"a FIN":                      func(s *segment) { s.flags |= fin },
	"a reset":                    func(s *segment) { s.flags |= rst },
	"an ACK of plain TCP":        func(s *segment) { s.options = timestampsOf(1, 2) },
	"an ACK without options":     func(s *segment) { s.options = nil },
	"one with MP_CAPABLE":        func(s *segment) { s.options = slices.Concat([]byte{30, 20, 1, 1}, make([]byte, 16)) },
	"options that do not add up": func(s *segment) { s.options = slices.Concat(dataACK, []byte{8, 99, 1, 1}) },
	"an option of no length":     func(s *segment) { s.options = slices.Concat(dataACK, []byte{8, 0, 1, 1}) },
}

func TestOptionsGoIntoNothingButPureACKsOfMPTCP(t *testing.T) {
	h := newHarness(t)
	for name, change := range unable {
		t.Run(name, func(t *testing.T) {
			for _, version := range []int{4, 6} {
				h.begin(t, version)
				h.ask(t, fromEndpoint, action{kind: setBackup, flag: 1})
				s := pureACK(version).with(change)
				out, verdict := h.run(t, fromEndpoint, s.frame())
				mustPass(t, verdict)
				mustBe(t, out, s)
			}
		})
	}
}

func TestTruncatedPacketsAreLeftAlone(t *testing.T) {
	h := newHarness(t)
	for _, version := range []int{4, 6} {
		for _, kind := range []uint8{rateLimit, setBackup, suppressAddAddr, releaseAddAddr, drop, reset} {
			whole := pureACK(version).frame()
			h.begin(t, version)
			h.ask(t, fromEndpoint, action{kind: kind, flag: 1, mechanism: police, rate: 1000})
			for length := shortestTestRun(version); length < len(whole); length++ {
				out, verdict := h.run(t, fromEndpoint, whole[:length])
				if verdict != next || !bytes.Equal(out, whole[:length]) {
					t.Errorf("IPv%d, action %d: of %d bytes came %x and %d", version, kind, length, out, verdict)
				}
			}
		}
	}
}

// shortestTestRun is the shortest frame that the kernel takes for a test run.
func shortestTestRun(version int) int {
	if version == 4 {
		return 14 + 20
	}
	return 14 + 40
}

func TestALimitHoldsWhileTheRulesAreAskedAnewAndEndsWhenTheyDoNotAsk(t *testing.T) {
	h := newHarness(t)
	h.begin(t, 4)
	h.ask(t, toEndpoint, action{kind: rateLimit, mechanism: window, rate: 2_500_000})
	data := pureACK(4).flip().with(func(s *segment) { s.options = nil; s.payload = []byte("some data") })
	h.run(t, toEndpoint, data.frame())
	s := pureACK(4)
	limited := s.with(func(s *segment) { s.window = 196 })
	h.steps(t, stepUnsettle|stepSettle)
	out, _ := h.run(t, fromEndpoint, s.frame())
	mustBe(t, out, limited)
	h.steps(t, stepSettle)
	h.wait(t, afterTheRule)
	out, _ = h.run(t, fromEndpoint, s.frame())
	mustBe(t, out, s)
	if s := h.subflow(t, 4); s.Engaged != 0 {
		t.Error("there is something left to do")
	}
}

func TestALimitThatIsAskedForAnewMayBeHigher(t *testing.T) {
	h := newHarness(t)
	h.begin(t, 4)
	h.ask(t, toEndpoint, action{kind: rateLimit, mechanism: window, rate: 1_000_000})
	data := pureACK(4).flip().with(func(s *segment) { s.options = nil; s.payload = []byte("some data") })
	h.run(t, toEndpoint, data.frame())
	h.ask(t, toEndpoint, action{kind: rateLimit, mechanism: window, rate: 2_500_000})
	h.steps(t, stepUnsettle|stepAct|stepSettle)
	h.run(t, toEndpoint, data.frame())
	if rate := h.subflow(t, 4).Limit[toEndpoint].Rate; rate != 2_500_000 {
		t.Errorf("the limit is %d", rate)
	}
}
