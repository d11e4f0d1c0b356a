// SPDX-License-Identifier: Apache-2.0

package pins

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/testutil"
)

var (
	word = &btf.Int{Name: "u32", Size: 4}
	half = &btf.Int{Name: "u16", Size: 2}
)

// record is a structure with these members, one after the other.
func record(members ...btf.Member) *btf.Struct {
	s := &btf.Struct{Name: "record"}
	for _, m := range members {
		size, err := btf.Sizeof(m.Type)
		if err != nil {
			panic(err)
		}
		m.Offset = btf.Bits(8 * s.Size)
		s.Members, s.Size = append(s.Members, m), s.Size+uint32(size)
	}
	return s
}

// flows is a map of the uplink half's kind, with values laid out as told.
func flows(value *btf.Struct) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: "flows", Type: ebpf.LRUHash, KeySize: 4, ValueSize: value.Size, MaxEntries: 100,
		Key: word, Value: value, Pinning: ebpf.PinByName,
	}
}

// version is an agent of a version that keeps one map.
type version struct {
	*Pins
	m  *ebpf.Map
	id ebpf.MapID
}

func start(t *testing.T, root, name string, maps Maps) *version {
	t.Helper()
	v := &version{Pins: New(root, name, logr.Discard())}
	require.NoError(t, v.Prepare(maps))
	spec := slices.Concat(maps.Kept, maps.Fresh)[0]
	var err error
	v.m, err = ebpf.NewMapWithOptions(spec, ebpf.MapOptions{PinPath: v.Directory()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.m.Close()) })
	info, err := v.m.Info()
	require.NoError(t, err)
	v.id, _ = info.ID()
	return v
}

func (v *version) put(t *testing.T, key uint32, value ...byte) {
	t.Helper()
	require.NoError(t, v.m.Put(key, value))
}

func (v *version) expect(t *testing.T, key uint32, wanted ...byte) {
	t.Helper()
	got, err := v.m.LookupBytes(key)
	require.NoError(t, err)
	if !slices.Equal(got, wanted) {
		t.Errorf("%d is %v instead of %v", key, got, wanted)
	}
}

func expectAlone(t *testing.T, v *version) {
	t.Helper()
	require.NoError(t, v.Finish())
	entries, err := os.ReadDir(v.root)
	require.NoError(t, err)
	if len(entries) != 1 || entries[0].Name() != v.version {
		t.Errorf("there are %v instead of %s alone", entries, v.version)
	}
}

var (
	older = record(btf.Member{Name: "path", Type: half}, btf.Member{Name: "gone", Type: half}, btf.Member{Name: "token", Type: word})
	newer = record(btf.Member{Name: "token", Type: word}, btf.Member{Name: "fresh", Type: word}, btf.Member{Name: "path", Type: half}, btf.Member{Name: "end", Type: half})
)

func TestMapsOfOneLayoutAreSharedByVersions(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	first := start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(older)}})
	second := start(t, root, "v2", Maps{Kept: []*ebpf.MapSpec{flows(older)}})
	if first.id != second.id {
		t.Error("the map was not shared")
	}
	expectAlone(t, second)
	if third := start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(older)}}); third.id != first.id {
		t.Error("the way back did not share the map")
	}
}

func TestMembersKeepTheirValuesByName(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	first := start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(older)}})
	first.put(t, 7, 1, 2, 3, 4, 5, 6, 7, 8)
	second := start(t, root, "v2", Maps{Kept: []*ebpf.MapSpec{flows(newer)}})
	second.expect(t, 7, 5, 6, 7, 8, 0, 0, 0, 0, 1, 2, 0, 0)
	second.put(t, 7, 9, 9, 9, 9, 0, 0, 0, 0, 1, 1, 0, 0)
	first.put(t, 8, 1, 0, 0, 0, 2, 0, 0, 0) // by the program that goes on
	expectAlone(t, second)
	second.expect(t, 7, 9, 9, 9, 9, 0, 0, 0, 0, 1, 1, 0, 0)
	second.expect(t, 8, 2, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)
	third := start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(older)}})
	third.expect(t, 7, 1, 1, 0, 0, 9, 9, 9, 9)
	expectAlone(t, third)
}

// Whoever forgets to name a new version does not read one member as another.
func TestALayoutThatChangedWithoutItsVersionIsNoticed(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	swapped := record(btf.Member{Name: "token", Type: word}, btf.Member{Name: "path", Type: half}, btf.Member{Name: "gone", Type: half})
	start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(older)}}).put(t, 7, 1, 2, 3, 4, 5, 6, 7, 8)
	second := start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(swapped)}})
	second.expect(t, 7, 5, 6, 7, 8, 1, 2, 3, 4)
	expectAlone(t, second)
}

func TestMapsOfAnotherSizeAreCopied(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(older)}}).put(t, 7, 1, 2, 3, 4, 5, 6, 7, 8)
	smaller := flows(older)
	smaller.MaxEntries = 50
	second := start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{smaller}})
	second.expect(t, 7, 1, 2, 3, 4, 5, 6, 7, 8)
	expectAlone(t, second)
}

func TestMapsThatAreFreshAreNotTakenOver(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	first := start(t, root, "v1", Maps{Fresh: []*ebpf.MapSpec{flows(older)}})
	if same := start(t, root, "v1", Maps{Fresh: []*ebpf.MapSpec{flows(older)}}); same.id != first.id {
		t.Error("an agent of the same version did not use the map")
	}
	second := start(t, root, "v2", Maps{Fresh: []*ebpf.MapSpec{flows(older)}})
	if second.id == first.id {
		t.Error("another version used the map")
	}
	expectAlone(t, second)
}

func TestArraysKeepTheirElements(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	array := func(elements uint32) *ebpf.MapSpec {
		value := record(btf.Member{Name: "of", Type: &btf.Array{Index: word, Type: half, Nelems: elements}})
		return &ebpf.MapSpec{
			Name: "node", Type: ebpf.Array, KeySize: 4, ValueSize: value.Size, MaxEntries: 2,
			Key: word, Value: value, Pinning: ebpf.PinByName,
		}
	}
	start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{array(2)}}).put(t, 1, 1, 2, 3, 4)
	start(t, root, "v2", Maps{Kept: []*ebpf.MapSpec{array(3)}}).expect(t, 1, 1, 2, 3, 4, 0, 0)
}

// What else is pinned, such as links, changes hands in one step; an agent that ended
// in the midst of it is no obstacle.
func TestWhatElseIsPinnedIsMoved(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	maps := Maps{Kept: []*ebpf.MapSpec{flows(older)}}
	first := start(t, root, "v1", maps)
	first.put(t, 7, 1, 2, 3, 4, 5, 6, 7, 8)
	links := filepath.Join(first.Directory(), "links", "nics")
	require.NoError(t, os.MkdirAll(links, 0o700))
	clone, err := first.m.Clone()
	require.NoError(t, err)
	require.NoError(t, clone.Pin(filepath.Join(links, "meter_3")))
	require.NoError(t, clone.Close())
	require.NoError(t, os.Mkdir(filepath.Join(root, "v2"+unfinished), 0o700))
	for range 2 { // the second time as if the first agent of this version had ended
		second := start(t, root, "v2", maps)
		second.expect(t, 7, 1, 2, 3, 4, 5, 6, 7, 8)
		if _, err := os.Stat(filepath.Join(second.Directory(), "links", "nics", "meter_3")); err != nil {
			t.Error(err)
		}
	}
	second := start(t, root, "v2", maps)
	expectAlone(t, second)
}

func TestAMapThatCannotBeCopiedBeginsAnew(t *testing.T) {
	root := filepath.Join(testutil.BPFFS(t), "part")
	start(t, root, "v1", Maps{Kept: []*ebpf.MapSpec{flows(older)}}).put(t, 7, 1, 2, 3, 4, 5, 6, 7, 8)
	wider := flows(older)
	wider.Key, wider.KeySize = &btf.Int{Name: "u64", Size: 8}, 8
	second := start(t, root, "v2", Maps{Kept: []*ebpf.MapSpec{wider}})
	if entries := second.m.Iterate(); entries.Next(new(uint64), new([8]byte)) {
		t.Error("entries were copied under keys that mean something else")
	}
	expectAlone(t, second)
}
