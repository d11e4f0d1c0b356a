// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/program"
	"braid.dev/braid/bpf/program/programtest"
)

// What became of a call: enum result, and NOT_SELECTED.
const (
	untouched   = 0
	acted       = 1
	dropped     = 2
	notSelected = 3
)

// Verdicts of a TC program.
const (
	next = -1
	shot = 2
)

// chain is the trial with blocks in its slots.
type chain struct {
	objects program.TrialObjects
	trial   program.TrialTrial
	slots   uint32
}

func newChain(t testing.TB) *chain {
	t.Helper()
	c := &chain{}
	require.NoError(t, program.LoadTrialObjects(&c.objects, nil))
	t.Cleanup(func() { require.NoError(t, c.objects.Close()) })
	return c
}

// load loads a block by itself, with maps of its own, and returns them.
func (c *chain) load(t testing.TB, source, name string) *ebpf.Collection {
	t.Helper()
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(programtest.Compile(t, source)))
	require.NoError(t, err)
	for other := range spec.Programs {
		if other != name {
			delete(spec.Programs, other)
		}
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{
		MapReplacements: map[string]*ebpf.Map{program.TrialMapBlockContext: c.objects.BlockContext},
	})
	require.NoError(t, err)
	t.Cleanup(loaded.Close)
	return loaded
}

// call makes the next action of the chain call the block.
func (c *chain) call(t testing.TB, source, name string, value int64) *ebpf.Collection {
	t.Helper()
	loaded := c.load(t, source, name)
	require.NoError(t, c.objects.CustomBlocks.Put(c.slots, loaded.Programs[name]))
	c.callSlot(c.slots, value)
	c.slots++
	return loaded
}

func (c *chain) callSlot(slot uint32, value int64) {
	c.trial.Action[c.trial.Blocks].Limit = slot
	c.trial.Action[c.trial.Blocks].Value = value
	c.trial.Blocks++
}

// run sends a packet through the chain. The results are those of the blocks that
// were called.
func (c *chain) run(t testing.TB, frame []byte) (verdict int32, out []byte, results []int32) {
	t.Helper()
	verdict, out, err := c.try(t, frame)
	require.NoError(t, err)
	var result program.TrialTrialResult
	require.NoError(t, c.objects.TrialResults.Lookup(uint32(0), &result))
	return verdict, out, result.Result[:result.Called]
}

// try fails where the kernel takes no such frame for a test run.
func (c *chain) try(t testing.TB, frame []byte) (verdict int32, out []byte, err error) {
	t.Helper()
	require.NoError(t, c.objects.Trials.Put(uint32(0), c.trial))
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256)}
	returned, err := c.objects.Trial.Run(options)
	return int32(returned), options.DataOut, err
}

// expect runs the chain and compares verdict and results.
func (c *chain) expect(t *testing.T, frame []byte, verdict int32, results ...int32) []byte {
	t.Helper()
	got, out, gotResults := c.run(t, frame)
	if got != verdict || !slices.Equal(gotResults, results) {
		t.Errorf("the verdict is %d, the results are %v; wanted %d, %v", got, gotResults, verdict, results)
	}
	return out
}

// forEachKind runs a test for packets of both IP versions, with and without a tag.
func forEachKind(t *testing.T, test func(t *testing.T, s segment)) {
	for _, version := range []int{4, 6} {
		for _, vlan := range []bool{false, true} {
			t.Run(fmt.Sprintf("IPv%d, tagged: %t", version, vlan), func(t *testing.T) {
				test(t, segment{version: version, vlan: vlan, flags: ack, options: timestamps, window: 500})
			})
		}
	}
}

func TestASelectorDecidesWhetherTheRuleGoesOn(t *testing.T) {
	c := newChain(t)
	c.call(t, "examples/large.bpf.c", "large", 100)
	c.call(t, "examples/stamp.bpf.c", "stamp", 1)
	forEachKind(t, func(t *testing.T, s segment) {
		s.payload = make([]byte, 99)
		s.expect(t, c.expect(t, s.frame(), next, notSelected))
		s.payload = make([]byte, 100)
		s.expect(t, c.expect(t, s.frame(), next, untouched, untouched))
	})
}

func TestABlockSelectsByTheCodePoint(t *testing.T) {
	c := newChain(t)
	c.call(t, "examples/dscp.bpf.c", "dscp", 46)
	forEachKind(t, func(t *testing.T, s segment) {
		s.expect(t, c.expect(t, s.frame(), next, notSelected))
		s.dscp = 46
		s.expect(t, c.expect(t, s.frame(), next, untouched))
	})
}

func TestAnActorPutsAnOptionIntoPureACKs(t *testing.T) {
	c := newChain(t)
	c.call(t, "examples/stamp.bpf.c", "stamp", 0x01020304)
	stamp := []byte{253, 8, 0xb5, 0xa1, 1, 2, 3, 4}
	forEachKind(t, func(t *testing.T, s segment) {
		stamped := s
		stamped.options = slices.Concat(timestamps, stamp)
		stamped.expect(t, c.expect(t, s.frame(), next, acted))
		stamped.expect(t, c.expect(t, stamped.frame(), next, untouched))

		full := s
		full.options = slices.Concat(timestamps, []byte{1, 1, 5, 26}, make([]byte, 24))
		full.expect(t, c.expect(t, full.frame(), next, untouched))

		data := s
		data.payload = []byte("data")
		data.expect(t, c.expect(t, data.frame(), next, untouched))

		first := s
		first.flags = syn
		first.expect(t, c.expect(t, first.frame(), next, untouched))
	})
}

func TestTheEditsOfTheHeader(t *testing.T) {
	dss := []byte{30, 8, 0x20, 1, 0, 0, 0, 9}
	forEachKind(t, func(t *testing.T, s segment) {
		s.options = slices.Concat(timestamps, dss)
		s.payload = []byte("payload")
		tests := map[string]struct {
			program string
			value   int64
			result  int32
			change  func(*segment)
		}{
			"an option is removed by its kind":     {"remove_kind", 8, acted, func(s *segment) { copy(s.options[2:], bytes.Repeat([]byte{1}, 10)) }},
			"an option that is not there":          {"remove_kind", 5, notSelected, func(*segment) {}},
			"an MPTCP option is removed":           {"remove_subtype", 2, acted, func(s *segment) { copy(s.options[12:], bytes.Repeat([]byte{1}, 8)) }},
			"an MPTCP option that is not there":    {"remove_subtype", 3, notSelected, func(*segment) {}},
			"the window is lowered":                {"window", 10, acted, func(s *segment) { s.window = 10 }},
			"the window is not raised":             {"window", 501, untouched, func(*segment) {}},
			"a field is written with its checksum": {"urgent", 0, acted, func(*segment) {}},
			"payload is read":                      {"first_byte", 'p', untouched, func(*segment) {}},
			"other payload does not match":         {"first_byte", 'q', notSelected, func(*segment) {}},
		}
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				c := newChain(t)
				c.call(t, "testdata/edits.bpf.c", test.program, test.value)
				wanted := s
				wanted.options = slices.Clone(s.options)
				test.change(&wanted)
				wanted.expect(t, c.expect(t, s.frame(), next, test.result))
			})
		}
	})
}

func TestABlockIsToldOfThePacketAndItsSubflow(t *testing.T) {
	frame := segment{version: 4, flags: ack, options: timestamps}.frame()
	for name, test := range map[string]struct {
		program    string
		right      int64
		wrong      int64
		toEndpoint bool
	}{
		"the token":                          {program: "token", right: 0x80000001 - 1<<32, wrong: 1},
		"what was sent":                      {program: "sent", right: 5000, wrong: 5001},
		"the direction":                      {program: "direction", right: 0, wrong: 1},
		"the other direction":                {program: "direction", right: 1, wrong: 0, toEndpoint: true},
		"the port of the peer":               {program: "remote_port", right: 80, wrong: 40000},
		"the port of the peer when it sends": {program: "remote_port", right: 40000, wrong: 80, toEndpoint: true},
	} {
		t.Run(name, func(t *testing.T) {
			for value, result := range map[int64]int32{test.right: untouched, test.wrong: notSelected} {
				c := newChain(t)
				c.trial.Subflow.Token = 0x80000001
				c.trial.Subflow.Traffic[0].Bytes = 5000
				if test.toEndpoint {
					c.trial.Direction = 1
				}
				c.call(t, "testdata/facts.bpf.c", test.program, value)
				c.expect(t, frame, next, result)
			}
		})
	}
}

// count reads a block's own counter.
func count(t *testing.T, m *ebpf.Map) (value uint64) {
	t.Helper()
	require.NoError(t, m.Lookup(uint32(0), &value))
	return value
}

func TestBlocksOfDifferentAuthorsRunInTheirOrderWithMapsOfTheirOwn(t *testing.T) {
	c := newChain(t)
	mine := c.call(t, "testdata/two.bpf.c", "first", 0)
	c.call(t, "examples/stamp.bpf.c", "stamp", 7)
	yours := c.call(t, "testdata/two.bpf.c", "first", 0)
	c.call(t, "testdata/two.bpf.c", "second", 0)
	after := c.call(t, "testdata/two.bpf.c", "first", 0)
	s := segment{version: 4, flags: ack, options: timestamps}
	for range 3 {
		c.expect(t, s.frame(), shot, untouched, acted, untouched, dropped)
	}
	if count(t, mine.Maps["first_count"]) != 3 || count(t, yours.Maps["first_count"]) != 3 {
		t.Error("two loads of one block do not count by themselves")
	}
	if count(t, after.Maps["first_count"]) != 0 {
		t.Error("a block after the one that dropped the packet was called")
	}
}

func TestABlockSeesWhatTheOneBeforeItChanged(t *testing.T) {
	c := newChain(t)
	c.call(t, "examples/stamp.bpf.c", "stamp", 7)
	c.call(t, "examples/stamp.bpf.c", "stamp", 8)
	c.call(t, "testdata/edits.bpf.c", "window", 9)
	s := segment{version: 6, flags: ack, options: timestamps, window: 500}
	out := c.expect(t, s.frame(), next, acted, untouched, acted)
	s.options = slices.Concat(timestamps, []byte{253, 8, 0xb5, 0xa1, 0, 0, 0, 7})
	s.window = 9
	s.expect(t, out)
}

func TestAnEmptySlotIsPassedOver(t *testing.T) {
	c := newChain(t)
	c.callSlot(63, 0)
	c.callSlot(64, 0)
	c.callSlot(1<<31, 0)
	c.slots = 1
	c.call(t, "testdata/edits.bpf.c", "window", 9)
	s := segment{version: 4, flags: ack, window: 500}
	out := c.expect(t, s.frame(), next, untouched, untouched, untouched, acted)
	s.window = 9
	s.expect(t, out)
}

func TestWhatABlockWritesOverItsCopiesStaysThere(t *testing.T) {
	c := newChain(t)
	c.call(t, "testdata/wrong.bpf.c", "wrong", 0)
	c.call(t, "testdata/edits.bpf.c", "window", 9)
	s := segment{version: 4, flags: ack, window: 500}
	out := c.expect(t, s.frame(), next, untouched, acted)
	s.window = 9
	s.expect(t, out)
}

// skBuff is the beginning of struct __sk_buff.
type skBuff struct {
	Len, PktType, Mark, QueueMapping, Protocol uint32
	VlanPresent, VlanTCI, VlanProto, Priority  uint32
	Rest                                       [39]uint32
}

func TestTheMarksOfAPacketStay(t *testing.T) {
	c := newChain(t)
	c.call(t, "testdata/marking.bpf.c", "marking", 0)
	require.NoError(t, c.objects.Trials.Put(uint32(0), c.trial))
	before, after := skBuff{Mark: 0x123, Priority: 3}, skBuff{}
	frame := segment{version: 4, flags: ack}.frame()
	_, err := c.objects.Trial.Run(&ebpf.RunOptions{Data: frame, Context: before, ContextOut: &after})
	require.NoError(t, err)
	if after.Mark != before.Mark || after.Priority != before.Priority {
		t.Errorf("mark %#x and priority %d have become %#x and %d", before.Mark, before.Priority, after.Mark, after.Priority)
	}
}

func TestABlockIsReplacedBetweenTwoPackets(t *testing.T) {
	c := newChain(t)
	c.call(t, "testdata/edits.bpf.c", "window", 9)
	other := c.load(t, "examples/large.bpf.c", "large")
	frame := segment{version: 4, flags: ack, window: 500}.frame()
	c.expect(t, frame, next, acted)
	require.NoError(t, c.objects.CustomBlocks.Put(uint32(0), other.Programs["large"]))
	c.expect(t, frame, next, notSelected)
	require.NoError(t, c.objects.CustomBlocks.Delete(uint32(0)))
	c.expect(t, frame, next, untouched)
}

func TestTheHistogramCountsPayloads(t *testing.T) {
	c := newChain(t)
	loaded := c.call(t, "examples/histogram.bpf.c", "histogram", 0)
	for _, size := range []int{0, 1, 2, 3, 1000, 1023, 1024} {
		c.expect(t, segment{version: 6, flags: ack, payload: make([]byte, size)}.frame(), next, untouched)
	}
	for class, wanted := range map[uint32]uint64{0: 1, 1: 1, 2: 2, 9: 0, 10: 2, 11: 1} {
		var counts []uint64
		require.NoError(t, loaded.Maps["payload_sizes"].Lookup(class, &counts))
		got := uint64(0)
		for _, of := range counts {
			got += of
		}
		if got != wanted {
			t.Errorf("class %d has %d packets, wanted %d", class, got, wanted)
		}
	}
}

// What calls of blocks cost above a chain without them.
func BenchmarkCalls(b *testing.B) {
	frame := segment{version: 4, flags: ack, options: timestamps, payload: make([]byte, 1000)}.frame()
	for _, calls := range []int{0, 1, 2, 4, 8} {
		b.Run(fmt.Sprint(calls), func(b *testing.B) {
			c := newChain(b)
			for range calls {
				c.call(b, "testdata/nothing.bpf.c", "nothing", 0)
			}
			require.NoError(b, c.objects.Trials.Put(uint32(0), c.trial))
			_, took, err := c.objects.Trial.Benchmark(frame, max(b.N, 1000), nil)
			require.NoError(b, err)
			b.ReportMetric(float64(took.Nanoseconds()), "ns/packet")
		})
	}
}
