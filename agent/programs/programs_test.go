// SPDX-License-Identifier: Apache-2.0

package programs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/programs"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/program"
	"braid.dev/braid/bpf/program/programtest"
	"braid.dev/braid/internal/testutil"
)

// What became of a call.
const (
	untouched   = 0
	acted       = 1
	dropped     = 2
	notSelected = 3
)

// node is what a manager works on: a chain, ConfigMaps, and a directory of pins.
type node struct {
	*programs.Manager
	options programs.Options
	chain   program.TrialObjects
	content configMaps
}

type configMaps map[string][]byte

func (c configMaps) Content(_ context.Context, name, key string) ([]byte, error) {
	content, there := c[name+"/"+key]
	if !there {
		return nil, fmt.Errorf("there is no ConfigMap %s with key %s", name, key)
	}
	return content, nil
}

const cgroup = "/sys/fs/cgroup"

// cgroupRoot is that of the cgroup2 tree.
func cgroupRoot(t *testing.T) string {
	t.Helper()
	for _, directory := range []string{cgroup, cgroup + "/unified"} {
		var status unix.Statfs_t
		if unix.Statfs(directory, &status) == nil && status.Type == unix.CGROUP2_SUPER_MAGIC {
			return directory
		}
	}
	t.Fatal("no cgroup2 tree is mounted")
	return ""
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{content: configMaps{}}
	require.NoError(t, program.LoadTrialObjects(&n.chain, nil))
	t.Cleanup(func() { require.NoError(t, n.chain.Close()) })
	n.options = programs.Options{
		PinPath: testutil.BPFFS(t), CustomBlocks: n.chain.CustomBlocks, BlockContext: n.chain.BlockContext,
		Cgroup: cgroupRoot(t), Directory: t.TempDir(), ConfigMaps: n.content, Log: testr.New(t),
	}
	require.NoError(t, os.Chmod(n.options.Directory, 0o755))
	n.start(t)
	return n
}

// start begins a manager, as an agent does that starts.
func (n *node) start(t *testing.T) {
	t.Helper()
	n.Manager = programs.NewManager(n.options)
	started := n.Manager
	t.Cleanup(func() {
		if n.Manager == started {
			n.apply(t)
			require.NoError(t, n.Close())
		}
	})
}

func (n *node) restart(t *testing.T) {
	t.Helper()
	require.NoError(t, n.Close())
	n.start(t)
}

// put writes a compiled source to ConfigMap "programs", and returns the program there.
func (n *node) put(t *testing.T, name, source, program string, defines ...string) v1alpha1.PlanProgram {
	t.Helper()
	n.content["programs/"+name] = programtest.Compile(t, source, defines...)
	return v1alpha1.PlanProgram{Policy: "policy", Program: v1alpha1.Program{
		Name: name, Type: v1alpha1.ProgramAction, Function: program,
		ConfigMap: &v1alpha1.ProgramConfigMap{Name: "programs", Key: name},
	}}
}

func (n *node) apply(t *testing.T, wanted ...v1alpha1.PlanProgram) programs.Result {
	t.Helper()
	result, err := n.Apply(context.Background(), wanted)
	require.NoError(t, err)
	return result
}

func (n *node) applyAll(t *testing.T, wanted ...v1alpha1.PlanProgram) programs.Result {
	t.Helper()
	result := n.apply(t, wanted...)
	for key, err := range result.Errors {
		t.Fatalf("program %s: %v", key, err)
	}
	return result
}

// run sends a pure ACK through a chain that calls these slots.
func (n *node) run(t *testing.T, slots ...uint32) (results []int32) {
	t.Helper()
	trial := program.TrialTrial{Blocks: uint32(len(slots))}
	for i, slot := range slots {
		trial.Action[i].Limit = slot
	}
	require.NoError(t, n.chain.Trials.Put(uint32(0), trial))
	_, err := n.chain.Trial.Run(&ebpf.RunOptions{Data: pureACK(), DataOut: make([]byte, 256)})
	require.NoError(t, err)
	var result program.TrialTrialResult
	require.NoError(t, n.chain.TrialResults.Lookup(uint32(0), &result))
	return result.Result[:result.Called]
}

func (n *node) expect(t *testing.T, slot uint32, result int32) {
	t.Helper()
	if got := n.run(t, slot); got[0] != result {
		t.Errorf("the program in slot %d does %d, wanted %d", slot, got[0], result)
	}
}

func pureACK() []byte {
	frame := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0}
	frame = append(frame, 0x45, 0, 0, 52, 0, 1, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2)
	frame = append(frame, 0x9c, 0x40, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 8<<4, 0x10, 1, 0, 0, 0, 0, 0)
	return append(frame, 1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2)
}

func TestBlocksWithinTheirBudgetAreUsed(t *testing.T) {
	n := newNode(t)
	result := n.applyAll(t,
		n.put(t, "stamp", "examples/stamp.bpf.c", ""),
		n.put(t, "large", "examples/large.bpf.c", ""),
		n.put(t, "dscp", "examples/dscp.bpf.c", "dscp"),
		n.put(t, "histogram", "examples/histogram.bpf.c", ""))
	if len(result.Slots) != 4 {
		t.Fatalf("the slots are %v", result.Slots)
	}
	n.expect(t, result.Slots["policy/stamp"], acted)
	n.expect(t, result.Slots["policy/large"], untouched)
	n.expect(t, result.Slots["policy/histogram"], untouched)
}

func TestWhatIsRefusedAndWhy(t *testing.T) {
	n := newNode(t)
	for name, test := range map[string]struct {
		source, program string
		kind            v1alpha1.ProgramType
		reasons         []string
	}{
		"a read beyond the packet": {source: "examples/faulty.bpf.c", reasons: []string{"the verifier refuses it", "invalid access to packet", "byte[packet->transport]"}},
		"too slow":                 {source: "testdata/costly.bpf.c", reasons: []string{"for a packet; a program may take 2µs"}},
		"too long":                 {source: "testdata/long.bpf.c", reasons: []string{"instructions; a program may have 50000"}},
		"a map of Braid's":         {source: "testdata/named.bpf.c", reasons: []string{"map subflows has the name of one of Braid's maps"}},
		"a pinned map":             {source: "testdata/pinned.bpf.c", reasons: []string{"map shared asks to be pinned"}},
		"a redirect":               {source: "testdata/redirecting.bpf.c", reasons: []string{"it calls bpf_clone_redirect, which programs may not"}},
		"no program":               {source: "testdata/plain.bpf.c", reasons: []string{"make programs with BRAID_BLOCK"}},
		"a program that is not there": {
			source: "examples/stamp.bpf.c", program: "other", reasons: []string{"has no program other; it holds stamp"}},
		"two programs and no name": {source: "testdata/two.bpf.c", reasons: []string{"first, second: say which program"}},
		"a schedule as an action": {
			source: "examples/hold_back.bpf.c", reasons: []string{"is of type SockOps; this type of program needs SchedCLS"}},
		"an action as a schedule": {
			source: "examples/stamp.bpf.c", kind: v1alpha1.ProgramSchedule, reasons: []string{"is of type SchedCLS"}},
		"an action as a congestion control": {
			source: "examples/stamp.bpf.c", kind: v1alpha1.ProgramCongestion, reasons: []string{"it must hold one struct tcp_congestion_ops"}},
	} {
		t.Run(name, func(t *testing.T) {
			wanted := n.put(t, "program", test.source, test.program)
			if test.kind != "" {
				wanted.Type = test.kind
			}
			result := n.apply(t, wanted)
			expectRefusal(t, result, test.reasons)
			if again := n.apply(t, wanted); again.Errors["policy/program"].Error() != result.Errors["policy/program"].Error() {
				t.Errorf("asked again: %v", again.Errors["policy/program"])
			}
		})
	}
}

func expectRefusal(t *testing.T, result programs.Result, reasons []string) {
	t.Helper()
	err := result.Errors["policy/program"]
	var refusal *programs.Refusal
	if !errors.As(err, &refusal) {
		t.Fatalf("the program was not refused: %v", err)
	}
	for _, reason := range reasons {
		if !strings.Contains(refusal.Error(), reason) {
			t.Errorf("the reason is %q, wanted %q in it", refusal, reason)
		}
	}
	if length := len(refusal.Error()); length > 512 {
		t.Errorf("the reason has %d bytes", length)
	}
	if len(result.Slots)+len(result.Algorithms)+len(result.Schedules) != 0 {
		t.Errorf("the refused program is in use: %+v", result)
	}
}

func TestBytesThatAreNoObjectAreRefused(t *testing.T) {
	n := newNode(t)
	wanted := n.put(t, "program", "examples/stamp.bpf.c", "")
	whole := n.content["programs/program"]
	for name, content := range map[string][]byte{
		"empty": {}, "text": []byte("#!/bin/sh\n"), "cut off": whole[:len(whole)/2], "too large": make([]byte, 2<<20),
		"the header alone": whole[:64],
	} {
		n.content["programs/program"] = content
		if err := n.apply(t, wanted).Errors["policy/program"]; err == nil {
			t.Errorf("%s: it was not refused", name)
		}
	}
}

func TestANewVersionTakesThePlaceOfTheOldOne(t *testing.T) {
	n := newNode(t)
	slot := n.applyAll(t, n.put(t, "program", "examples/stamp.bpf.c", "")).Slots["policy/program"]
	n.expect(t, slot, acted)
	result := n.applyAll(t, n.put(t, "program", "testdata/two.bpf.c", "second"))
	if result.Slots["policy/program"] != slot {
		t.Errorf("the slot was %d and is %d", slot, result.Slots["policy/program"])
	}
	n.expect(t, slot, dropped)
	n.expectPins(t, 1)
}

func TestAFaultyVersionLeavesTheOldOneInUse(t *testing.T) {
	n := newNode(t)
	n.applyAll(t, n.put(t, "program", "examples/stamp.bpf.c", ""))
	for _, source := range []string{"examples/faulty.bpf.c", "testdata/costly.bpf.c"} {
		result := n.apply(t, n.put(t, "program", source, ""))
		if result.Errors["policy/program"] == nil {
			t.Errorf("%s was not refused", source)
		}
		slot, there := result.Slots["policy/program"]
		if !there {
			t.Fatal("the old version is no longer in use")
		}
		n.expect(t, slot, acted)
	}
	wanted := n.put(t, "program", "examples/stamp.bpf.c", "")
	delete(n.content, "programs/program")
	result := n.apply(t, wanted)
	if result.Errors["policy/program"] == nil || len(result.Slots) != 1 {
		t.Errorf("without its ConfigMap: %+v", result)
	}
}

func TestABlockThatIsNoLongerWantedIsRemoved(t *testing.T) {
	n := newNode(t)
	stamp, drop := n.put(t, "stamp", "examples/stamp.bpf.c", ""), n.put(t, "drop", "testdata/two.bpf.c", "second")
	slots := n.applyAll(t, stamp, drop).Slots
	if after := n.applyAll(t, stamp).Slots; !maps.Equal(after, map[string]uint32{"policy/stamp": slots["policy/stamp"]}) {
		t.Errorf("the slots are %v", after)
	}
	n.expect(t, slots["policy/drop"], untouched)
	n.expect(t, slots["policy/stamp"], acted)
	n.expectPins(t, 1)
	n.applyAll(t)
	n.expectPins(t, 0)
}

// What takes the place of a removed program at once does not get its slot: chains
// may still call that.
func TestASlotIsNotGivenToAnotherBlockAtOnce(t *testing.T) {
	n := newNode(t)
	old := n.applyAll(t, n.put(t, "stamp", "examples/stamp.bpf.c", "")).Slots["policy/stamp"]
	if slot := n.applyAll(t, n.put(t, "large", "examples/large.bpf.c", "")).Slots["policy/large"]; slot == old {
		t.Errorf("both are in slot %d", slot)
	}
}

func TestBlocksOfTwoPoliciesDoNotShareMaps(t *testing.T) {
	n := newNode(t)
	mine, yours := n.put(t, "count", "testdata/counted.bpf.c", ""), n.put(t, "count", "testdata/counted.bpf.c", "")
	yours.Policy = "other"
	slots := n.applyAll(t, mine, yours).Slots
	if slots["policy/count"] == slots["other/count"] {
		t.Fatalf("both are in slot %d", slots["policy/count"])
	}
	counters := counterIDs(t, 2)
	for _, id := range counters {
		if count := lookUp(t, id); count != 0 {
			t.Errorf("the trial left %d in a program's map", count)
		}
	}
	n.run(t, slots["policy/count"])
	n.run(t, slots["policy/count"])
	n.run(t, slots["other/count"])
	counts := map[uint64]int{}
	for _, id := range counters {
		counts[lookUp(t, id)]++
	}
	if !maps.Equal(counts, map[uint64]int{2: 1, 1: 1}) {
		t.Errorf("the counts of the two are %v", counts)
	}
}

// counterIDs are those of all maps named counted_calls, once there are so many: the
// kernel takes a while to free those of the trial.
func counterIDs(t *testing.T, wanted int) (ids []ebpf.MapID) {
	t.Helper()
	testutil.Retry(t, 10*time.Second, func() error {
		if ids = mapIDs(t, "counted_calls"); len(ids) != wanted {
			return fmt.Errorf("%d maps named counted_calls are there, wanted %d", len(ids), wanted)
		}
		return nil
	})
	return ids
}

func mapIDs(t *testing.T, name string) (ids []ebpf.MapID) {
	t.Helper()
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return ids
		}
		require.NoError(t, err)
		id = next
		m, err := ebpf.NewMapFromID(id)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		require.NoError(t, err)
		info, err := m.Info()
		require.NoError(t, err)
		require.NoError(t, m.Close())
		if info.Name == name {
			ids = append(ids, id)
		}
	}
}

func lookUp(t *testing.T, id ebpf.MapID) (value uint64) {
	t.Helper()
	m, err := ebpf.NewMapFromID(id)
	require.NoError(t, err)
	require.NoError(t, m.Lookup(uint32(0), &value))
	require.NoError(t, m.Close())
	return value
}

func TestTheNextAgentTakesBlocksOver(t *testing.T) {
	n := newNode(t)
	stamp, count := n.put(t, "stamp", "examples/stamp.bpf.c", ""), n.put(t, "count", "testdata/counted.bpf.c", "")
	slots := n.applyAll(t, stamp, count).Slots
	ids := counterIDs(t, 1)
	n.run(t, slots["policy/count"])
	n.restart(t)
	n.expect(t, slots["policy/stamp"], acted)
	if after := n.applyAll(t, stamp, count).Slots; !maps.Equal(after, slots) {
		t.Errorf("the slots were %v and are %v", slots, after)
	}
	n.run(t, slots["policy/count"])
	if got := lookUp(t, ids[0]); got != 2 {
		t.Errorf("the program's own map has counted %d packets, wanted 2", got)
	}
	n.restart(t)
	n.applyAll(t, stamp)
	n.expect(t, slots["policy/count"], untouched)
}

func TestBlocksOfChainsThatAreGoneAreLoadedAnew(t *testing.T) {
	n := newNode(t)
	stamp := n.put(t, "stamp", "examples/stamp.bpf.c", "")
	n.applyAll(t, stamp)
	require.NoError(t, n.Close())
	require.NoError(t, n.chain.Close())
	n.chain = program.TrialObjects{}
	require.NoError(t, program.LoadTrialObjects(&n.chain, nil))
	n.options.CustomBlocks, n.options.BlockContext = n.chain.CustomBlocks, n.chain.BlockContext
	n.start(t)
	n.expect(t, n.applyAll(t, stamp).Slots["policy/stamp"], acted)
	n.expectPins(t, 1)
}

func TestAPolicyHasEightProgramsAtMost(t *testing.T) {
	n := newNode(t)
	var wanted []v1alpha1.PlanProgram
	for i := range 9 {
		wanted = append(wanted, n.put(t, fmt.Sprintf("program%d", i), "examples/large.bpf.c", ""))
	}
	result := n.apply(t, wanted...)
	if len(result.Slots) != 8 || result.Errors["policy/program8"] == nil {
		t.Errorf("the slots are %v, the errors %v", result.Slots, result.Errors)
	}
}

func (n *node) expectPins(t *testing.T, wanted int) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.options.PinPath, "programs"))
	require.NoError(t, err)
	if len(entries) != wanted {
		t.Errorf("%d pins are there, wanted %d: %v", len(entries), wanted, entries)
	}
}

func TestBlocksAreReadFromFilesOfRoot(t *testing.T) {
	object := programtest.Compile(t, "examples/stamp.bpf.c")
	for name, test := range map[string]struct {
		file    string
		prepare func(t *testing.T, directory string)
		reason  string
	}{
		"a file of root":        {file: "stamp.o", prepare: func(*testing.T, string) {}},
		"a file that is absent": {file: "other.o", prepare: func(*testing.T, string) {}, reason: "no such file"},
		"a file above":          {file: "../stamp.o", prepare: func(*testing.T, string) {}, reason: "is not the name of a file"},
		"a whole path":          {file: "/etc/passwd", prepare: func(*testing.T, string) {}, reason: "is not the name of a file"},
		"a file that all can write": {file: "stamp.o", reason: "writable by nobody else", prepare: func(t *testing.T, directory string) {
			require.NoError(t, os.Chmod(filepath.Join(directory, "stamp.o"), 0o666))
		}},
		"a file of somebody else": {file: "stamp.o", reason: "must belong to root", prepare: func(t *testing.T, directory string) {
			require.NoError(t, os.Chown(filepath.Join(directory, "stamp.o"), 65534, 65534))
		}},
		"a directory that all can write": {file: "stamp.o", reason: "the directory of programs must belong to root", prepare: func(t *testing.T, directory string) {
			require.NoError(t, os.Chmod(directory, 0o777))
		}},
		"a link that leads out": {file: "link.o", reason: "link.o", prepare: func(t *testing.T, directory string) {
			require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(directory, "link.o")))
		}},
		"a pipe": {file: "pipe.o", reason: "is not a regular file", prepare: func(t *testing.T, directory string) {
			require.NoError(t, unix.Mkfifo(filepath.Join(directory, "pipe.o"), 0o600))
		}},
		"a directory": {file: "directory", reason: "is not a regular file", prepare: func(t *testing.T, directory string) {
			require.NoError(t, os.Mkdir(filepath.Join(directory, "directory"), 0o700))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			require.NoError(t, os.WriteFile(filepath.Join(n.options.Directory, "stamp.o"), object, 0o644))
			test.prepare(t, n.options.Directory)
			result := n.apply(t, v1alpha1.PlanProgram{Policy: "policy", Program: v1alpha1.Program{Name: "program", Type: v1alpha1.ProgramAction, File: test.file}})
			err := result.Errors["policy/program"]
			if test.reason == "" {
				require.NoError(t, err)
				n.expect(t, result.Slots["policy/program"], acted)
			} else if err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("the error is %v, wanted %q in it", err, test.reason)
			}
		})
	}
}

func entries(t *testing.T, id ebpf.MapID) (count int) {
	t.Helper()
	m, err := ebpf.NewMapFromID(id)
	require.NoError(t, err)
	var key uint32
	var value [8]byte
	all := m.Iterate()
	for all.Next(&key, &value) {
		count++
	}
	require.NoError(t, errors.Join(all.Err(), m.Close()))
	return count
}
