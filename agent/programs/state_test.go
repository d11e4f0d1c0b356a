// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

const sharedSource = "testdata/shared.bpf.c"

// counts is the map of that source, as the kernel names it.
const counts = "shared_counts"

// sharing has a program share a map, of its own policy or of another.
func sharing(program v1alpha1.PlanProgram, name, policy string) v1alpha1.PlanProgram {
	program.SharedState = []v1alpha1.SharedState{{Name: name, Policy: policy}}
	return program
}

func (n *node) sharing(t *testing.T, name, function string, defines ...string) v1alpha1.PlanProgram {
	t.Helper()
	return sharing(n.put(t, name, sharedSource, function, defines...), counts, "")
}

// reading is of policy "other", and names the map of "policy".
func (n *node) reading(t *testing.T, name, function string, defines ...string) v1alpha1.PlanProgram {
	t.Helper()
	program := sharing(n.put(t, name, sharedSource, function, defines...), counts, "policy")
	program.Policy = "other"
	return program
}

func waitForMaps(t *testing.T, name string, wanted int) (ids []ebpf.MapID) {
	t.Helper()
	testutil.Retry(t, 10*time.Second, func() error {
		if ids = mapIDs(t, name); len(ids) != wanted {
			return fmt.Errorf("%d maps named %s are there, wanted %d", len(ids), name, wanted)
		}
		return nil
	})
	return ids
}

func TestProgramsOfAPolicyShareTheMapThatTheyName(t *testing.T) {
	n := newNode(t)
	alone := n.put(t, "alone", sharedSource, "look")
	elsewhere := n.sharing(t, "elsewhere", "look")
	elsewhere.Policy = "other"
	slots := n.applyAll(t, n.sharing(t, "writer", "store"), n.sharing(t, "reader", "look"), alone, elsewhere).Slots
	waitForMaps(t, counts, 3)
	n.expect(t, slots["policy/reader"], untouched) // the trial has written nothing
	n.run(t, slots["policy/writer"])
	n.expect(t, slots["policy/reader"], acted)
	n.expect(t, slots["policy/alone"], untouched)
	n.expect(t, slots["other/elsewhere"], untouched)
}

func TestAMapThatIsDeclaredOtherwiseIsRefusedBeforeAnythingIsAttached(t *testing.T) {
	n := newNode(t)
	for name, test := range map[string]struct{ define, reason string }{
		"type":              {"TYPE=SHARED_HASH", "it is of type Hash"},
		"entries":           {"ENTRIES=5", "it has 5 entries"},
		"flags":             {"FLAGS=BPF_F_NO_PREALLOC", "it has flags 0x1"},
		"key":               {"KEY=__s32", "its key is a number of 4 bytes with a sign"},
		"size of the value": {"MEMBER=__u64 count, more", "its value has 24 bytes"},
		"a member's name":   {"MEMBER=__u64 packets", "its value, packets at bit 0"},
		"a member's size":   {"MEMBER=__u32 count", "its value, count at bit 0 is a number of 4 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			defines := []string{test.define}
			if name == "flags" {
				defines = append(defines, "TYPE=SHARED_HASH")
			}
			one, two := n.sharing(t, "one", "store", defines[1:]...), n.sharing(t, "two", "look", defines...)
			result := n.apply(t, one, two)
			for _, key := range []string{"policy/one", "policy/two"} {
				expectReason(t, result.Errors[key], "map shared_counts is declared otherwise in program", test.reason)
			}
			require.Empty(t, result.Slots)
			n.expectPins(t, 0)
		})
	}
}

func expectReason(t *testing.T, err error, parts ...string) {
	t.Helper()
	require.Error(t, err)
	for _, part := range parts {
		require.Contains(t, err.Error(), part)
	}
}

func TestMapsThatCannotBeSharedAreRefused(t *testing.T) {
	n := newNode(t)
	for name, test := range map[string]struct {
		source, function, shared, reason string
		defines                          []string
	}{
		"a map that the object lacks":       {shared: "other_counts", reason: "the object has no map other_counts"},
		"a map that another function has":   {source: "testdata/two_maps.bpf.c", function: "first", shared: "of_second", reason: "the program does not use map of_second"},
		"a queue":                           {source: "testdata/two_maps.bpf.c", function: "queued", shared: "of_queued", reason: "map of_queued is of type Queue, which programs cannot share"},
		"a map of Braid's":                  {defines: []string{"NAME=subflows"}, shared: "subflows", reason: "map subflows has the name of one of Braid's maps"},
		"what chains and programs exchange": {shared: "block_context", reason: "map block_context has the name of one of Braid's maps"},
		"too many entries":                  {defines: []string{"ENTRIES=65537"}, shared: counts, reason: "map shared_counts has 65537 entries; one that programs share may have 65536"},
		"too many bytes":                    {defines: []string{"ENTRIES=65536", "MEMBER=__u64 count, more[32]"}, shared: counts, reason: "share have room for 18087936 bytes; they may have 16777216"},
		"a lock":                            {defines: []string{"MEMBER=struct bpf_spin_lock lock"}, shared: counts, reason: "its value, lock at bit 0 has a struct bpf_spin_lock"},
		"a pointer":                         {defines: []string{"MEMBER=void *to"}, shared: counts, reason: "its value, to at bit 0 is neither a number nor made of numbers"},
		"a map that programs cannot write":  {defines: []string{"FLAGS=128"}, shared: counts, reason: "map shared_counts has flags 0x80"},
	} {
		t.Run(name, func(t *testing.T) {
			source, function := sharedSource, "look"
			if test.source != "" {
				source, function = test.source, test.function
			}
			result := n.apply(t, sharing(n.put(t, "program", source, function, test.defines...), test.shared, ""))
			expectReason(t, result.Errors["policy/program"], test.reason)
			require.Empty(t, result.Slots)
			n.expectPins(t, 0)
		})
	}
}

func TestAnotherPolicyReadsAMapAndCannotWriteIt(t *testing.T) {
	n := newNode(t)
	writer := n.sharing(t, "writer", "store")
	look := n.reading(t, "look", "look")
	slots := n.applyAll(t, look, writer).Slots // whatever their order
	waitForMaps(t, counts, 1)
	n.expect(t, slots["other/look"], untouched)
	n.run(t, slots["policy/writer"])
	n.expect(t, slots["other/look"], acted)
	for _, function := range []string{"store", "add", "load", "update", "erase"} {
		t.Run(function, func(t *testing.T) {
			result := n.apply(t, writer, look, n.reading(t, "wrong", function))
			expectReason(t, result.Errors["other/wrong"], "it may only read the maps of other policies")
			require.NotContains(t, result.Slots, "other/wrong")
		})
	}
}

func TestAReaderDeclaresAMapAsItsPolicyDoes(t *testing.T) {
	n := newNode(t)
	result := n.apply(t, n.sharing(t, "writer", "store"), n.reading(t, "look", "look", "ENTRIES=5"))
	expectReason(t, result.Errors["other/look"], "declared otherwise in policy policy", "here it has 5 entries, there it has 4 entries")
}

func TestAReaderWaitsForTheMapAndFollowsIt(t *testing.T) {
	n := newNode(t)
	look := n.reading(t, "look", "look")
	expectReason(t, n.apply(t, look).Errors["other/look"], "policy policy has no program on this node that shares map shared_counts")
	slots := n.applyAll(t, look, n.sharing(t, "writer", "store")).Slots
	n.run(t, slots["policy/writer"])
	n.expect(t, slots["other/look"], acted)

	// The map is another one now, and empty.
	wider := n.reading(t, "look", "look", "ENTRIES=8")
	slots = n.applyAll(t, wider, n.sharing(t, "writer", "store", "ENTRIES=8")).Slots
	waitForMaps(t, counts, 1)
	n.expect(t, slots["other/look"], untouched)
	n.run(t, slots["policy/writer"])
	n.expect(t, slots["other/look"], acted)
}

func TestProgramsOfAllTypesAreRefusedWhereTheyWriteToMapsOfOtherPolicies(t *testing.T) {
	needsLinks(t)
	n := newNode(t)
	const source, name = "testdata/shared_window.bpf.c", "shared_window"
	owner := sharing(n.put(t, "owner", source, "", "ON_PACKETS"), name, "")
	schedule := func(defines ...string) v1alpha1.PlanProgram {
		program := sharing(n.schedule(t, "schedule", source, append(defines, "SCHEDULING")...), name, "policy")
		program.Policy = "other"
		return program
	}
	control := func(defines ...string) v1alpha1.PlanProgram {
		program := sharing(n.congestion(t, "control", source, append(defines, named(algorithm))...), name, "policy")
		program.Policy = "other"
		return program
	}
	result := n.apply(t, owner, schedule("WRITING"), control("WRITING"))
	for _, key := range []string{"other/schedule", "other/control"} {
		expectReason(t, result.Errors[key], "it may only read the maps of other policies")
	}
	require.Empty(t, result.Schedules)
	require.Empty(t, result.Algorithms)
	require.NotContains(t, algorithms(t), algorithm)
	result = n.applyAll(t, owner, schedule(), control())
	require.True(t, result.Schedules["other/schedule"])
	require.Equal(t, algorithm, result.Algorithms["other/control"])
}

func TestSharedStateOutlivesTheAgentAndGoesWithItsPrograms(t *testing.T) {
	n := newNode(t)
	writer, reader := n.sharing(t, "writer", "store"), n.sharing(t, "reader", "look")
	before := n.applyAll(t, writer, reader).Slots
	id := waitForMaps(t, counts, 1)
	n.expectPins(t, 3)
	n.run(t, before["policy/writer"])
	n.restart(t)
	after := n.applyAll(t, writer, reader).Slots
	require.Equal(t, before, after)
	require.Equal(t, id, waitForMaps(t, counts, 1))
	n.expect(t, after["policy/reader"], acted)

	// A program that comes later finds what is there, and one that goes leaves it.
	late := n.sharing(t, "late", "look")
	after = n.applyAll(t, writer, reader, late).Slots
	n.expect(t, after["policy/late"], acted)
	n.expect(t, n.applyAll(t, late).Slots["policy/late"], acted)
	require.Equal(t, id, waitForMaps(t, counts, 1))
	n.applyAll(t)
	waitForMaps(t, counts, 0)
	n.expectPins(t, 0)
}

func TestSharedStateStaysWhileNoObjectCanBeRead(t *testing.T) {
	n := newNode(t)
	writer, reader := n.sharing(t, "writer", "store"), n.reading(t, "reader", "look")
	slots := n.applyAll(t, writer, reader).Slots
	id := waitForMaps(t, counts, 1)
	n.run(t, slots["policy/writer"])
	objects := maps.Clone(n.content)
	clear(n.content)
	n.restart(t)
	result := n.apply(t, writer, reader)
	require.Len(t, result.Errors, 2)
	require.Equal(t, slots, result.Slots)
	n.expect(t, slots["other/reader"], acted)
	maps.Copy(n.content, objects)
	require.Equal(t, slots, n.applyAll(t, writer, reader).Slots)
	require.Equal(t, id, waitForMaps(t, counts, 1))
	n.expect(t, slots["other/reader"], acted)
}

func TestANewVersionKeepsWhatIsSharedWhileItDeclaresItAlike(t *testing.T) {
	n := newNode(t)
	slots := n.applyAll(t, n.sharing(t, "writer", "store"), n.sharing(t, "reader", "look")).Slots
	n.run(t, slots["policy/writer"])
	n.applyAll(t, n.sharing(t, "writer", "store"), n.sharing(t, "reader", "store"))
	slots = n.applyAll(t, n.sharing(t, "writer", "look"), n.sharing(t, "reader", "store")).Slots
	n.expect(t, slots["policy/writer"], acted)
}

func TestAProgramThatIsRefusedLeavesWhatIsSharedAsItIs(t *testing.T) {
	n := newNode(t)
	writer, reader := n.sharing(t, "writer", "store"), n.sharing(t, "reader", "look")
	slots := n.applyAll(t, writer, reader).Slots
	id := waitForMaps(t, counts, 1)
	n.run(t, slots["policy/writer"])
	// Only one of the two has the new declaration.
	result := n.apply(t, writer, n.sharing(t, "reader", "look", "ENTRIES=8"))
	require.Len(t, result.Errors, 2)
	require.True(t, maps.Equal(slots, result.Slots))
	n.expect(t, slots["policy/reader"], acted)
	// The only one that shares it is too slow in its new version.
	n.applyAll(t, writer)
	slow := sharing(n.put(t, "writer", "testdata/costly_sharing.bpf.c", ""), counts, "")
	expectReason(t, n.apply(t, slow).Errors["policy/writer"], "a program may take 2µs")
	require.Equal(t, id, waitForMaps(t, counts, 1))
	n.expectPins(t, 2)
}

func TestTheExamplesThatShareAMapAreTaken(t *testing.T) {
	n := newNode(t)
	result := n.applyAll(t,
		sharing(n.put(t, "count-marks", "examples/count_marks.bpf.c", ""), "marks", ""),
		sharing(n.schedule(t, "yield", "examples/yield.bpf.c"), "marks", ""),
		sharing(n.put(t, "heed-pace", "examples/heed_pace.bpf.c", ""), "asked_paces", ""),
		sharing(n.schedule(t, "keep-pace", "examples/keep_pace.bpf.c"), "asked_paces", ""))
	n.expect(t, result.Slots["policy/count-marks"], untouched)
	n.expect(t, result.Slots["policy/heed-pace"], untouched)
	require.True(t, result.Schedules["policy/yield"] && result.Schedules["policy/keep-pace"])
	n.expectPins(t, 8)
}

func TestAnotherFunctionOfTheSameObjectIsLoaded(t *testing.T) {
	n := newNode(t)
	program := n.put(t, "program", "testdata/two.bpf.c", "first")
	program.Revision = "1"
	slot := n.applyAll(t, program).Slots["policy/program"]
	program.Function = "second"
	require.Equal(t, slot, n.applyAll(t, program).Slots["policy/program"])
	n.expect(t, slot, dropped)
}

func TestAPacketProgramFeedsACongestionControl(t *testing.T) {
	needsLinks(t)
	n := newNode(t)
	const source, name = "testdata/shared_window.bpf.c", "shared_window"
	result := n.applyAll(t,
		sharing(n.put(t, "packets", source, "", "ON_PACKETS"), name, ""),
		sharing(n.congestion(t, "control", source, named(algorithm)), name, ""))
	namespace := network.NamespaceForTest(t)
	require.NoError(t, namespace.SetUp("lo"))
	p := plain(t, namespace)
	require.NoError(t, p.choose(t, result.Algorithms["policy/control"]))
	p.transfer(t)
	require.NotEqual(t, uint32(3), window(t, p.client))
	n.run(t, result.Slots["policy/packets"])
	p.transfer(t)
	require.Equal(t, uint32(3), window(t, p.client))
}

// window is the congestion window of a connection, in segments.
func window(t *testing.T, connection *net.TCPConn) (segments uint32) {
	t.Helper()
	require.NoError(t, control(t, connection, func(socket int) error {
		info, err := unix.GetsockoptTCPInfo(socket, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			segments = info.Snd_cwnd
		}
		return err
	}))
	return segments
}

// lowerEffort is the code point by which the test's peer asks the pod to yield (RFC 8622).
const lowerEffort = 1

// The example of the docs: what comes to a pod is marked, which its sockets do not see; the
// program on its packets does, and the schedule holds the pod's subflows back by that.
func TestAScheduleDecidesByWhatAPacketProgramMeasures(t *testing.T) {
	n, c := newChainNode(t)
	w := newWire(t, c)
	result := n.applyAll(t,
		sharing(n.put(t, "count-marks", "examples/count_marks.bpf.c", ""), "marks", ""),
		sharing(n.schedule(t, "yield", "examples/yield.bpf.c"), "marks", ""))
	require.NoError(t, n.Govern("policy/yield", []uint64{cookieOf(t, w.endpoint)}))
	c.set(t, rule{custom(result.Slots["policy/count-marks"], lowerEffort)})
	sink := newSink(t, w.endpoint, w.peer, peerAddress)

	free := sink.rate(t)
	sink.mark(t, lowerEffort)
	held := sink.rate(t)
	sink.mark(t, 0)
	again := sink.rate(t)
	t.Logf("unmarked %.1f MB/s, marked %.3f MB/s, unmarked again %.1f MB/s", free/1e6, held/1e6, again/1e6)
	const yielding, slack = 500000, 1.3
	if held > yielding*slack {
		t.Errorf("while its packets are marked the pod sends %.0f bytes a second, wanted %d at most", held, yielding)
	}
	if least := 20.0 * yielding; free < least || again < least {
		t.Errorf("unmarked it sends %.0f and %.0f bytes a second, wanted %.0f at least", free, again, least)
	}
}

// sink is what a pod's connection sends to.
type sink struct {
	accepted *net.TCPConn
}

func newSink(t *testing.T, from, to *network.Namespace, address string) *sink {
	t.Helper()
	listener, err := to.Listen(t.Context(), "tcp4", address+":7001")
	require.NoError(t, err)
	client, err := from.Dial(t.Context(), "tcp4", address+":7001")
	require.NoError(t, err)
	accepted, err := listener.Accept()
	require.NoError(t, errors.Join(err, listener.Close()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for piece := make([]byte, 64<<10); ; {
			if _, err := client.Write(piece); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, errors.Join(client.Close(), accepted.Close()))
		<-ended
	})
	return &sink{accepted.(*net.TCPConn)}
}

// mark sets the code point of what the peer sends: of its acknowledgements.
func (s *sink) mark(t *testing.T, codePoint int) {
	t.Helper()
	require.NoError(t, control(t, s.accepted, func(socket int) error {
		return unix.SetsockoptInt(socket, unix.IPPROTO_IP, unix.IP_TOS, codePoint<<2)
	}))
}

// rate is what comes in a second, once what was under way has come.
func (s *sink) rate(t *testing.T) float64 {
	t.Helper()
	s.read(t, 2*time.Second)
	const seconds = 2
	return float64(s.read(t, seconds*time.Second)) / seconds
}

func (s *sink) read(t *testing.T, during time.Duration) (bytes int64) {
	t.Helper()
	require.NoError(t, s.accepted.SetReadDeadline(time.Now().Add(during)))
	bytes, err := io.Copy(io.Discard, s.accepted)
	require.ErrorContains(t, err, "timeout")
	return bytes
}
