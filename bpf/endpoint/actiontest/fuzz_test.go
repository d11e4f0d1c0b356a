// SPDX-License-Identifier: Apache-2.0

package actiontest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/endpoint/actiontest"
	"braid.dev/braid/internal/testutil"
)

// fuzzed is an actor under mutated packets: how it is set up for one packet, and
// what it may change in it.
type fuzzed struct {
	action action
	// record makes the subflow's record such that the actor has something to do.
	record func(*actiontest.HarnessSubflow)
	// hides puts an announcement into the way first.
	hides bool
	steps uint32
	// allowed judges a packet that came out unlike it went in.
	allowed func(before, after []byte, l layout) error
	// mayDrop tells whether the packet may end here.
	mayDrop func(before []byte, l layout) bool
}

func never([]byte, layout) bool { return false }

func always([]byte, layout) bool { return true }

var fuzzedActors = map[string]fuzzed{
	"window": {
		record:  limited(action{mechanism: window, rate: 1_000_000}),
		steps:   stepSettle,
		allowed: onlyWindow,
		mayDrop: never,
	},
	"hold": {
		record:  held,
		steps:   stepSettle,
		allowed: onlyAcknowledgement,
		mayDrop: tellsNothing,
	},
	"police": {
		action:  action{kind: rateLimit, mechanism: police, rate: 1000},
		record:  overdrawn,
		steps:   stepAct | stepSettle,
		allowed: nothing,
		mayDrop: func(before []byte, l layout) bool {
			return l.packetEnd > l.end && before[l.tcp+13]&(syn|fin|rst) == 0
		},
	},
	"backup": {
		action:  action{kind: setBackup, flag: 1},
		steps:   stepAct | stepSettle,
		allowed: either(inserted(sayBackup[:3]), flagSet),
		mayDrop: never,
	},
	"undone backup": {
		record: func(s *actiontest.HarnessSubflow) {
			s.Engaged, s.BackupState.Told, s.BackupState.Times = 1, [2]uint8{2, 2}, [2]uint8{3, 3}
		},
		steps:   stepSettle,
		allowed: inserted(sayNormal[:3]),
		mayDrop: never,
	},
	"block": {
		action:  action{kind: suppressAddAddr, flag: 1},
		steps:   stepAct | stepSettle,
		allowed: announcementsGone,
		mayDrop: never,
	},
	"echo": {
		action:  action{kind: suppressAddAddr, flag: 1},
		hides:   true,
		steps:   stepSettle,
		allowed: either(inserted(announcement(6, 5, 99, true)), replaced(announcement(6, 5, 99, true))),
		mayDrop: never,
	},
	"add": {
		action:  action{kind: releaseAddAddr},
		hides:   true,
		steps:   stepAct | stepSettle,
		allowed: either(inserted(announcement(6, 5, 99, false)), replaced(announcement(6, 5, 99, false))),
		mayDrop: never,
	},
	"drop": {
		action:  action{kind: drop},
		steps:   stepAct | stepSettle,
		allowed: nothing,
		mayDrop: always,
	},
	"reset": {
		action:  action{kind: reset},
		steps:   stepAct | stepSettle,
		allowed: isReset,
		mayDrop: func(before []byte, l layout) bool { return before[l.tcp+13]&rst == 0 },
	},
}

// overdrawn is a bucket of which no more can be taken for a minute.
func overdrawn(s *actiontest.HarnessSubflow) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	s.Window[fromEndpoint].Loop.Until = uint64(now.Nano()) + 130*second
}

// The judges. Each wants all bytes that it does not name to be the same, and the
// checksums as right or wrong as they were.

func nothing(before, after []byte, _ layout) error {
	return errors.New("it changed")
}

func either(judges ...func(before, after []byte, l layout) error) func(before, after []byte, l layout) error {
	return func(before, after []byte, l layout) error {
		var all []error
		for _, judge := range judges {
			err := judge(before, after, l)
			if err == nil {
				return nil
			}
			all = append(all, err)
		}
		return errors.Join(all...)
	}
}

// same compares two packets apart from some bytes, by their places.
func same(before, after []byte, except ...int) error {
	if len(before) != len(after) {
		return fmt.Errorf("%d bytes became %d", len(before), len(after))
	}
	for i := range before {
		if before[i] != after[i] && !slices.Contains(except, i) {
			return fmt.Errorf("byte %d changed", i)
		}
	}
	return nil
}

func sameChecksums(before, after []byte, l layout) error {
	now, ok := lay(after)
	if !ok {
		return errors.New("it is no TCP segment any more")
	}
	ip, tcp := residues(before, l)
	newIP, newTCP := residues(after, now)
	if ip != newIP || tcp != newTCP {
		return fmt.Errorf("the checksums came to %#x and %#x, and come to %#x and %#x", ip, tcp, newIP, newTCP)
	}
	return nil
}

func onlyWindow(before, after []byte, l layout) error {
	if binary.BigEndian.Uint16(after[l.tcp+14:]) > binary.BigEndian.Uint16(before[l.tcp+14:]) {
		return errors.New("the window was raised")
	}
	if before[l.tcp+13]&syn != 0 {
		return errors.New("a SYN was touched")
	}
	return errors.Join(same(before, after, l.tcp+14, l.tcp+15, l.tcp+16, l.tcp+17), sameChecksums(before, after, l))
}

// headersExcept are the bytes of the headers that another length changes.
func lengthFields(l layout) []int {
	fields := []int{l.tcp + 12, l.tcp + 16, l.tcp + 17}
	if l.version == 4 {
		return append(fields, l.network+2, l.network+3, l.network+10, l.network+11)
	}
	return append(fields, l.network+4, l.network+5)
}

func isPureACK(frame []byte, l layout) bool {
	return l.end == l.packetEnd && frame[l.tcp+13]&(syn|fin|rst|ack) == ack
}

// inserted expects an option behind the others of a pure ACK.
func inserted(option []byte) func(before, after []byte, l layout) error {
	return func(before, after []byte, l layout) error {
		if !isPureACK(before, l) {
			return errors.New("it was no pure ACK")
		}
		now, ok := lay(after)
		if !ok || now.packetEnd != len(after) || !bytes.Equal(after[l.end:], fill(option)) {
			return errors.New("the option does not follow the others")
		}
		return errors.Join(same(before[:l.options], after[:l.options], lengthFields(l)...),
			same(withoutEnd(before[l.options:l.end]), after[l.options:l.end]), sameChecksums(before, after, l))
	}
}

// replaced expects an option instead of DSS, and of timestamps where they do not fit.
func replaced(option []byte) func(before, after []byte, l layout) error {
	return func(before, after []byte, l layout) error {
		if !isPureACK(before, l) {
			return errors.New("it was no pure ACK")
		}
		now, ok := lay(after)
		if !ok || now.packetEnd != len(after) {
			return errors.New("its lengths do not add up")
		}
		got := after[now.options:now.end]
		if len(got) >= 12 && got[2] == 8 && !bytes.Contains(before[l.options:l.end], got[2:12]) {
			return errors.New("the timestamps changed")
		}
		at := bytes.Index(got, option)
		if at < 0 || (at != 0 && at != 12) || len(bytes.Trim(got[at+len(option):], "\x01")) != 0 {
			return fmt.Errorf("its options are %x", got)
		}
		return errors.Join(same(before[:l.options], after[:l.options], lengthFields(l)...), sameChecksums(before, after, l))
	}
}

// each calls f with the place and length of every option that adds up.
func each(frame []byte, l layout, f func(at, length int)) {
	for at := l.options; at < l.end; {
		kind := frame[at]
		if kind == 0 {
			return
		}
		length := 1
		if kind != 1 {
			if at+1 >= l.end {
				return
			}
			length = int(frame[at+1])
			if length < 2 || at+length > l.end {
				return
			}
		}
		f(at, length)
		at += length
	}
}

// flagSet expects an MP_PRIO of the sender's own with another flag.
func flagSet(before, after []byte, l layout) error {
	flags := -1
	each(before, l, func(at, length int) {
		if flags < 0 && before[at] == 30 && length >= 3 && before[at+2]>>4 == 5 {
			flags = at + 2
		}
	})
	if flags < 0 || before[flags]^1 != after[flags] {
		return errors.New("no flag of a priority changed")
	}
	return errors.Join(same(before, after, flags, l.tcp+16, l.tcp+17), sameChecksums(before, after, l))
}

// announcementsGone expects the first ADD_ADDR to be NOPs, or void.
func announcementsGone(before, after []byte, l layout) error {
	from, to := -1, -1
	each(before, l, func(at, length int) {
		if from < 0 && before[at] == 30 && slices.Contains([]int{16, 18, 28, 30}, length) && before[at+2]>>4 == 3 {
			from, to = at, at+length
		}
	})
	if from < 0 || len(after) != len(before) {
		return errors.New("it announced nothing")
	}
	nops := len(bytes.Trim(after[from:to], "\x01")) == 0
	void := bytes.Equal(after[from:from+4], before[from:from+4]) && len(bytes.Trim(after[from+4:to], "\x00")) == 0
	if !nops && !void {
		return fmt.Errorf("the announcement became %x", after[from:to])
	}
	except := []int{l.tcp + 16, l.tcp + 17}
	for at := from; at < to; at++ {
		except = append(except, at)
	}
	return errors.Join(same(before, after, except...), sameChecksums(before, after, l))
}

// isReset expects the packet turned round. Its checksum is right, whatever it was.
func isReset(before, after []byte, l layout) error {
	now, ok := lay(after)
	if !ok || now.end != len(after) || now.end != now.options {
		return fmt.Errorf("%x is no bare segment", after)
	}
	if _, tcp := residues(after, now); tcp != 0xffff {
		return errors.New("its checksum is wrong")
	}
	if oldIP, _ := residues(before, l); l.version == 4 {
		if newIP, _ := residues(after, now); oldIP != newIP {
			return errors.New("the checksum of IP is not what it was")
		}
	}
	if after[now.tcp+13]&^ack != rst || !bytes.Equal(after[now.tcp:now.tcp+2], before[l.tcp+2:l.tcp+4]) {
		return fmt.Errorf("%x is no reset", after)
	}
	return nil
}

// subjects are the packets that mutate: of each kind that an actor looks for.
func subjects() (frames [][]byte) {
	for _, version := range []int{4, 6} {
		for _, shape := range shapes {
			for _, s := range []segment{
				pureACK(version),
				announces(version, announcement(4, 5, 0, false)),
				announces(version, announcement(4, 6, 90, false)),
				announces(version, announcement(6, 5, 0, false)),
				announces(version, announcement(6, 5, 99, false)),
				announces(version, announcement(4, 5, 0, true)),
				pureACK(version).with(func(s *segment) { s.options = slices.Concat(s.options, sayNormal) }),
				pureACK(version).with(func(s *segment) { s.options = slices.Concat(timestampsOf(1, 2), dataACK4, oneSACK) }),
				pureACK(version).with(func(s *segment) { s.options = slices.Concat(timestampsOf(1, 2), dataACK4, twoSACKs) }),
				pureACK(version).with(func(s *segment) { s.options = slices.Concat(timestampsOf(1, 2), dataACK4, []byte{0, 0, 0, 0}) }),
				pureACK(version).with(func(s *segment) { s.options = nil }),
				pureACK(version).with(func(s *segment) {
					s.options, s.payload = slices.Concat(timestampsOf(1, 2), mapping), bytes.Repeat([]byte("braid"), 20)
				}),
				pureACK(version).with(func(s *segment) { s.flags, s.options = syn, joinSYN }),
				pureACK(version).with(func(s *segment) { s.flags |= fin; s.options = finalDSS }),
				pureACK(version).with(func(s *segment) { s.flags |= rst; s.options = nil }),
			} {
				frames = append(frames, s.with(shape).frame())
			}
		}
	}
	return frames
}

// interesting are bytes that mean something in options and headers.
var interesting = []byte{0, 1, 2, 3, 4, 5, 6, 8, 10, 16, 18, 20, 22, 28, 30, 40, 43, 44, 60, 0x30, 0x31, 0x50, 0x51, 0x7f, 0x80, 0xff}

// mutate changes a copy of a frame in some places, most of them where actors look.
func mutate(random *rand.Rand, frame []byte) []byte {
	frame = bytes.Clone(frame)
	l, _ := lay(frame)
	for range random.IntN(5) {
		at := random.IntN(len(frame))
		if l.end > l.options && random.IntN(3) > 0 {
			at = l.options + random.IntN(l.end-l.options)
		} else if random.IntN(3) > 0 {
			at = l.tcp + 4 + random.IntN(16)
		}
		if at >= len(frame) {
			continue
		}
		switch random.IntN(3) {
		case 0:
			frame[at] = interesting[random.IntN(len(interesting))]
		case 1:
			frame[at] ^= 1 << random.IntN(8)
		default:
			frame[at] = byte(random.Uint32())
		}
	}
	switch random.IntN(12) {
	case 0:
		frame = frame[:random.IntN(len(frame))]
	case 1:
		frame = append(frame, make([]byte, random.IntN(40))...)
	}
	return frame
}

// takesTestRun tells whether the kernel runs a program on the frame.
func takesTestRun(frame []byte) bool {
	if len(frame) < 15 || len(frame) > 3000 {
		return false
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		return len(frame) >= shortestTestRun(4)
	case etherIPv6:
		return len(frame) >= shortestTestRun(6)
	}
	return true
}

// prepare makes the harness ready for packets to this actor.
func (f *fuzzed) prepare(t testutil.TB, h *harness) {
	h.order = actiontest.HarnessOrder{Endpoint: theEndpoint, Steps: stepAct | stepSettle}
	for _, version := range []int{4, 6} {
		h.begin(t, version, signalled)
	}
	if f.hides {
		h.ask(t, toEndpoint, action{kind: suppressAddAddr, flag: 1})
		h.ask(t, fromEndpoint, action{kind: suppressAddAddr, flag: 1})
		announced := announces(6, announcement(6, 5, 99, false))
		for _, direction := range []int{fromEndpoint, toEndpoint} {
			s := announced
			if direction == toEndpoint {
				s = s.flip()
			}
			_, _, err := h.runHere(direction, s.frame())
			require.NoError(t, err)
		}
	}
	h.order.Ahead = 10 * second
	h.order.Steps = f.steps
	h.ask(t, fromEndpoint, f.action)
}

// again makes the records as they were before any packet.
func (f *fuzzed) again(t testutil.TB, h *harness) {
	for _, version := range []int{4, 6} {
		h.begin(t, version, func(s *actiontest.HarnessSubflow) {
			if f.record != nil {
				f.record(s)
			}
			if f.hides {
				s.Engaged, s.Addresses.Hidden, s.Addresses.Signalled = 1, 1, 3
				if f.steps == stepSettle {
					s.Addresses.Blocking, s.Addresses.EchoDue = 1, [2]uint8{1 << 5, 1 << 5}
				}
			}
		})
	}
	// Addresses are given back a few times only.
	if f.hides && f.action.kind == releaseAddAddr {
		h.giveBackAgain(t)
	}
}

func (h *harness) giveBackAgain(t testutil.TB) {
	key := actiontest.HarnessHiddenKey{Token: theToken}
	key.Subflow.Endpoint = theEndpoint
	var hidden actiontest.HarnessHidden
	require.NoError(t, h.HiddenAddresses.Lookup(key, &hidden))
	for i := range hidden.Address {
		if hidden.Address[i].Length != 0 {
			hidden.Address[i].Waiting, hidden.Address[i].Tries = 1, 0
		}
	}
	require.NoError(t, h.HiddenAddresses.Update(key, &hidden, ebpf.UpdateAny))
}

// judge runs one packet and says what is wrong with what came out.
func (f *fuzzed) judge(h *harness, before []byte) (touched bool, err error) {
	after, verdict, err := h.runHere(fromEndpoint, before)
	if err != nil {
		return false, err
	}
	l, ok := lay(before)
	changed := !bytes.Equal(before, after)
	if !ok && (changed || verdict != next) {
		return false, fmt.Errorf("what is no whole TCP segment became %x and %d", after, verdict)
	}
	if verdict != next && (verdict != shot || !f.mayDrop(before, l)) {
		return false, fmt.Errorf("the verdict is %d", verdict)
	}
	if !changed {
		return verdict != next, nil
	}
	if err := f.allowed(before, after, l); err != nil {
		return true, fmt.Errorf("it became %x: %w", after, err)
	}
	return true, nil
}

// The number of mutated packets, of all actors together.
const (
	packetsVariable = "BRAID_FUZZ_PACKETS"
	usualPackets    = 200_000
	packetsARecord  = 4
)

func packetsToFuzz(t *testing.T) int {
	t.Helper()
	value := os.Getenv(packetsVariable)
	if value == "" {
		return usualPackets
	}
	packets, err := strconv.Atoi(value)
	require.NoError(t, err)
	return packets
}

func TestMutatedPacketsKeepAllThatNoRuleChanges(t *testing.T) {
	h := newHarness(t)
	frames := subjects()
	each := packetsToFuzz(t) / len(fuzzedActors)
	for _, name := range slices.Sorted(maps.Keys(fuzzedActors)) {
		t.Run(name, func(t *testing.T) {
			f, random := fuzzedActors[name], rand.New(rand.NewPCG(1, uint64(len(name))))
			run, touched := 0, 0
			require.NoError(t, h.namespace.Do(func() error {
				f.prepare(t, h)
				for run < each {
					packet := mutate(random, frames[random.IntN(len(frames))])
					if !takesTestRun(packet) {
						continue
					}
					if run%packetsARecord == 0 {
						f.again(t, h)
					}
					changed, err := f.judge(h, packet)
					if err != nil {
						return fmt.Errorf("packet %d, %x: %w", run, packet, err)
					}
					if run++; changed {
						touched++
					}
				}
				return nil
			}))
			t.Logf("%d of %d packets were changed or dropped", touched, run)
			if touched < run/100 {
				t.Error("the actor had hardly anything to do")
			}
		})
	}
}

func fuzz(f *testing.F, name string) {
	h := newHarness(f)
	actor := fuzzedActors[name]
	for _, frame := range subjects() {
		f.Add(frame)
	}
	require.NoError(f, h.namespace.Do(func() error {
		actor.prepare(f, h)
		return nil
	}))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if !takesTestRun(packet) {
			return
		}
		require.NoError(t, h.namespace.Do(func() error {
			actor.again(t, h)
			_, err := actor.judge(h, packet)
			return err
		}))
	})
}

func FuzzWindow(f *testing.F)       { fuzz(f, "window") }
func FuzzHold(f *testing.F)         { fuzz(f, "hold") }
func FuzzPolice(f *testing.F)       { fuzz(f, "police") }
func FuzzBackup(f *testing.F)       { fuzz(f, "backup") }
func FuzzUndoneBackup(f *testing.F) { fuzz(f, "undone backup") }
func FuzzBlock(f *testing.F)        { fuzz(f, "block") }
func FuzzEcho(f *testing.F)         { fuzz(f, "echo") }
func FuzzAdd(f *testing.F)          { fuzz(f, "add") }
func FuzzDrop(f *testing.F)         { fuzz(f, "drop") }
func FuzzReset(f *testing.F)        { fuzz(f, "reset") }
