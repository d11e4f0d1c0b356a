// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// skipWithoutVLAN ends a test on a kernel that was built without VLANs.
func skipWithoutVLAN(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, unix.EOPNOTSUPP) {
		t.Skip("this kernel has no VLAN interfaces (CONFIG_VLAN_8021Q)")
	}
	t.Fatal(err)
}

// indexes are the NICs of a node, by path.
func (l *lab) indexes(t *testing.T, node int) map[string]int {
	t.Helper()
	indexes := map[string]int{}
	for _, path := range l.Spec.Paths {
		index, err := l.Nodes[node].Index(path)
		require.NoError(t, err)
		indexes[path] = index
	}
	return indexes
}

// knowsTCX tells whether this kernel does.
func knowsTCX(t *testing.T) bool {
	t.Helper()
	supported, err := attach.SupportsTCX(newCounter(t).program)
	require.NoError(t, err)
	return supported
}

// programs are those that are attached to a NIC by TCX, in their order.
func (l *lab) programs(t *testing.T, node, nic int, hook attach.Hook) (ids []ebpf.ProgramID) {
	t.Helper()
	if !knowsTCX(t) {
		return nil
	}
	require.NoError(t, l.Nodes[node].Do(func() error {
		result, err := link.QueryPrograms(link.QueryOptions{Target: nic, Attach: hook.Type})
		if err != nil {
			return err
		}
		for _, program := range result.Programs {
			ids = append(ids, program.ID)
		}
		return nil
	}))
	return ids
}

// filters are the names of a NIC's BPF filters.
func (l *lab) filters(t *testing.T, node, nic int, hook attach.Hook) (names []string) {
	t.Helper()
	require.NoError(t, l.Nodes[node].Do(func() error {
		filters, err := attach.Filters(nic, hook)
		for _, filter := range filters {
			names = append(names, filter.(*netlink.BpfFilter).Name)
		}
		return err
	}))
	return names
}

// expectAttached checks how many programs each hook of a NIC has, however they
// are attached.
func (l *lab) expectAttached(t *testing.T, node int, path string, count int) {
	t.Helper()
	nic := l.indexes(t, node)[path]
	for _, hook := range hooks {
		programs, filters := l.programs(t, node, nic, hook), l.filters(t, node, nic, hook)
		if len(programs)+len(filters) != count {
			t.Errorf("node %d, %s, %s: programs %v and filters %v instead of %d", node+1, path, hook.Name, programs, filters, count)
		}
	}
}

func (l *lab) hasClsact(t *testing.T, node, nic int) bool {
	t.Helper()
	handle, err := l.Nodes[node].Handle()
	require.NoError(t, err)
	device, err := handle.LinkByIndex(nic)
	require.NoError(t, err)
	qdiscs, err := handle.QdiscList(device)
	require.NoError(t, err)
	return slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Type() == "clsact" })
}

// expectLinks looks at what is pinned: a link for each hook of each NIC.
func expectLinks(t *testing.T, d *Datapath, nics int) {
	t.Helper()
	if d.AttachMode() != "tcx" {
		return
	}
	entries, err := os.ReadDir(d.linkDirectory())
	require.NoError(t, err)
	if len(entries) != nics*len(hooks) {
		t.Errorf("%d links are pinned instead of %d for %d NICs: %v", len(entries), nics*len(hooks), nics, entries)
	}
}

// objectIDs are the numbers that the kernel gave to what a datapath loaded.
type objectIDs struct {
	maps     []ebpf.MapID
	programs []ebpf.ProgramID
}

func idsOf(t *testing.T, d *Datapath) (ids objectIDs) {
	t.Helper()
	var all []*ebpf.Map
	maps := reflect.ValueOf(*d.loaded.Value.maps())
	for i := range maps.NumField() {
		all = append(all, maps.Field(i).Interface().(*ebpf.Map))
	}
	for _, m := range all {
		info, err := m.Info()
		require.NoError(t, err)
		id, _ := info.ID()
		ids.maps = append(ids.maps, id)
	}
	for _, program := range d.loaded.Value.programs() {
		info, err := program.Info()
		require.NoError(t, err)
		id, _ := info.ID()
		ids.programs = append(ids.programs, id)
	}
	return ids
}

// left lists what of it the kernel still has. It frees things a moment later than
// they are let go.
func (ids objectIDs) left() (left []any) {
	for _, id := range ids.maps {
		if m, err := ebpf.NewMapFromID(id); err == nil {
			left = append(left, m.String())
			m.Close()
		}
	}
	for _, id := range ids.programs {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			left = append(left, p.String())
			p.Close()
		}
	}
	return left
}

// expectNothing checks that nothing of the datapath is left at a node.
func (l *lab) expectNothing(t *testing.T, node int, ids objectIDs) {
	t.Helper()
	testutil.Retry(t, 10*time.Second, func() error {
		if left := ids.left(); len(left) > 0 {
			return fmt.Errorf("node %d: the kernel still has %v", node+1, left)
		}
		return nil
	})
	for path, nic := range l.indexes(t, node) {
		l.expectAttached(t, node, path, 0)
		if l.hasClsact(t, node, nic) {
			t.Errorf("node %d, %s: there is a clsact qdisc", node+1, path)
		}
	}
	if _, err := os.Stat(Directory(l.nodeOptions(node).PinPath)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("node %d: the directory of pins: %v", node+1, err)
	}
	for n, entry := range l.neighbours(t, node) {
		if entry.ours {
			t.Errorf("node %d: the neighbour %s is kept", node+1, n.address)
		}
	}
}

// forEachMode runs a test with each way of attaching that the kernel knows.
func forEachMode(t *testing.T, f func(t *testing.T, mode string, options Options)) {
	if knowsTCX(t) {
		t.Run("tcx", func(t *testing.T) { f(t, "tcx", Options{}) })
	}
	t.Run("clsact", func(t *testing.T) { f(t, "clsact", Options{Clsact: true}) })
}

// needsTCX ends a test on a kernel before 6.6.
func needsTCX(t *testing.T) {
	t.Helper()
	if !knowsTCX(t) {
		t.Skip("this kernel does not know TCX (Linux 6.6)")
	}
}

func TestRemovalLeavesNothing(t *testing.T) {
	forEachMode(t, func(t *testing.T, mode string, options Options) {
		l, client, server := newPair(t, options)
		l.applyAll(t)
		if got := l.datapaths[0].AttachMode(); got != mode {
			t.Fatalf("the programs are attached by %q", got)
		}
		ids := []objectIDs{idsOf(t, l.datapaths[0]), idsOf(t, l.datapaths[1])}
		m := startMixture(t, client, server, traffic.Options{Duration: untilEnded, Verify: true})
		m.at(500 * time.Millisecond)
		l.sentIn(t, 0, 400*time.Millisecond).expectShares(t, "before", evenShares)
		l.apply(t, 0, State{}) // no paths: the policy was deleted
		require.NoError(t, l.Nodes[1].Do(func() error { return l.datapaths[1].Remove(t.Context()) }))
		for node := range l.Nodes {
			l.expectNothing(t, node, ids[node])
		}
		if mode := l.datapaths[0].AttachMode(); mode != "" {
			t.Errorf("nothing is attached, by %q", mode)
		}
		m.at(1300 * time.Millisecond)
		l.sentIn(t, 0, 400*time.Millisecond).expectShares(t, "after", map[string]float64{"blue": 1})
		m.end(t)
		l.applyAll(t) // and once more, by the same agent
		l.sent(t, 0, func() {
			transfer(t, client, server, 4, traffic.Options{Duration: 600 * time.Millisecond})
		}).expectShares(t, "with a policy again", evenShares)
	})
}

// Uninstalling needs no earlier Apply by the same process.
func TestAnotherAgentsThingsAreRemoved(t *testing.T) {
	forEachMode(t, func(t *testing.T, _ string, options Options) {
		l := newLab(t, threePaths, 1, options)
		l.applyAll(t)
		ids := idsOf(t, l.datapaths[0])
		older := filepath.Join(Directory(l.nodeOptions(0).PinPath), "v0") // of an agent with another layout
		require.NoError(t, os.Mkdir(older, 0o700))
		pin(t, l.datapaths[0].loaded.Value.maps().Owners, filepath.Join(older, "flows"))
		require.NoError(t, l.datapaths[0].Close())
		l.datapaths[0] = Open(l.nodeOptions(0))
		require.NoError(t, l.Nodes[0].Do(func() error { return l.datapaths[0].Remove(t.Context()) }))
		l.expectNothing(t, 0, ids)
		require.NoError(t, l.Nodes[0].Do(func() error { return l.datapaths[0].Remove(t.Context()) })) // it may be repeated
	})
}

// pin pins a map at a second place.
func pin(t *testing.T, m *ebpf.Map, file string) {
	t.Helper()
	info, err := m.Info()
	require.NoError(t, err)
	id, _ := info.ID()
	second, err := ebpf.NewMapFromID(id)
	require.NoError(t, err)
	defer second.Close()
	require.NoError(t, second.Pin(file))
}

func TestAChangedWayOfAttachingLeavesNothingOfTheOther(t *testing.T) {
	needsTCX(t)
	l := newLab(t, threePaths, 1, Options{})
	for _, clsact := range []bool{false, true, false} {
		l.reopen(t, 0, Options{Clsact: clsact})
		l.apply(t, 0, l.states(t)[0])
		for path, nic := range l.indexes(t, 0) {
			l.expectAttached(t, 0, path, 1)
			if filters := l.filters(t, 0, nic, hooks[0]); clsact != (len(filters) == 1) || clsact != l.hasClsact(t, 0, nic) {
				t.Errorf("clsact %t, %s: filters %v", clsact, path, filters)
			}
		}
	}
}

// counter is a program that counts packets and lets them go on.
type counter struct {
	program *ebpf.Program
	counts  *ebpf.Map
}

func newCounter(t *testing.T) *counter {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	require.NoError(t, err)
	t.Cleanup(func() { counts.Close() })
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type:    ebpf.SchedCLS,
		License: "GPL",
		Instructions: asm.Instructions{
			asm.StoreImm(asm.RFP, -4, 0, asm.Word),
			asm.Mov.Reg(asm.R2, asm.RFP),
			asm.Add.Imm(asm.R2, -4),
			asm.LoadMapPtr(asm.R1, counts.FD()),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, -1).WithSymbol("end"),
			asm.Return(),
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return &counter{program, counts}
}

func (c *counter) count(t *testing.T) (count uint64) {
	t.Helper()
	require.NoError(t, c.counts.Lookup(uint32(0), &count))
	return count
}

// attachCounter attaches it to a hook of all NICs of a node.
func (l *lab) attachCounter(t *testing.T, node int, hook attach.Hook, anchor link.Anchor) *counter {
	t.Helper()
	c := newCounter(t)
	for _, nic := range l.indexes(t, node) {
		l.attach(t, node, nic, c.program, hook, anchor)
	}
	return c
}

// attach attaches another's program until the test ends.
func (l *lab) attach(t *testing.T, node, nic int, program *ebpf.Program, hook attach.Hook, anchor link.Anchor) {
	t.Helper()
	var attached link.Link
	require.NoError(t, l.Nodes[node].Do(func() (err error) {
		attached, err = link.AttachTCX(link.TCXOptions{Interface: nic, Program: program, Attach: hook.Type, Anchor: anchor})
		return err
	}))
	t.Cleanup(func() { attached.Close() })
}

// Each packet passes the programs of others once: those before ours, until ours move, see it
// where the route sends it and again where it is redirected to; those after ours see it
// where it leaves.
func TestOtherProgramsSeeAllPackets(t *testing.T) {
	needsTCX(t)
	l, client, server := newPair(t, Options{})
	var earlier, first, last [2]*counter
	for i, hook := range hooks {
		earlier[i] = l.attachCounter(t, 0, hook, link.Tail())
	}
	l.applyAll(t)
	for i, hook := range hooks {
		first[i] = l.attachCounter(t, 0, hook, link.Head())
		last[i] = l.attachCounter(t, 0, hook, link.Tail())
	}
	begun := [2]uint64{earlier[0].count(t), earlier[1].count(t)}
	var result *traffic.Result
	l.sent(t, 0, func() {
		result = transfer(t, client, server, 4, traffic.Options{Duration: 700 * time.Millisecond})
	}).expectShares(t, "beside other programs", evenShares)
	out, in := 0, 1
	const background = 100 // ARP, neighbour discovery and the like between two readings
	for _, c := range []struct {
		what string
		a, b uint64
	}{
		{"egress, an earlier one", earlier[out].count(t) - begun[out], last[out].count(t)},
		{"ingress, before and after ours", first[in].count(t), last[in].count(t)},
		{"ingress, an earlier one", earlier[in].count(t) - begun[in], last[in].count(t)},
	} {
		if c.a < 1000 || c.a > c.b+background || c.b > c.a+background {
			t.Errorf("%s: %d and %d packets", c.what, c.a, c.b)
		}
	}
	// Of the packets that went to another NIC, those before ours saw two, and
	// those after ours one.
	redirected := first[out].count(t) - last[out].count(t)
	if share := float64(redirected) / float64(last[out].count(t)); share < 0.4 || share > 0.9 {
		t.Errorf("%d packets before ours, %d after", first[out].count(t), last[out].count(t))
	}
	if result.Subflows != 3 {
		t.Errorf("%d subflows", result.Subflows)
	}
}

// tcOK is TC_ACT_OK: no program runs after it.
const tcOK = 0

// As Cilium's programs do, whether they come before ours or later.
func TestProgramsThatEndTheRunDoNotKeepConnectionsFromOtherPaths(t *testing.T) {
	needsTCX(t)
	l, client, server := newPair(t, Options{})
	for _, anchor := range []link.Anchor{link.Tail(), link.Head()} {
		end := newEnd(t)
		for _, hook := range hooks {
			for _, nic := range l.indexes(t, 0) {
				l.attach(t, 0, nic, end, hook, anchor)
			}
		}
		l.applyAll(t)
		l.sent(t, 0, func() {
			transfer(t, client, server, 4, traffic.Options{Duration: 700 * time.Millisecond})
		}).expectShares(t, "beside programs that end the run", evenShares)
	}
}

func newEnd(t *testing.T) *ebpf.Program {
	t.Helper()
	end, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "end", Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcOK), asm.Return()},
	})
	require.NoError(t, err)
	t.Cleanup(func() { end.Close() })
	return end
}

// Where a program ends the run with TC_ACT_OK the kernel clears what ours wrote into tc_index.
func TestProgramsThatEndTheRunAtATunnelsDeviceDoNotHideWhatIsInIt(t *testing.T) {
	needsTCX(t)
	l := newOverlay(t, network.Overlay{Outer: 4, External: true})
	end := newEnd(t)
	for i, node := range l.Nodes {
		tunnel, err := node.Index(network.TunnelDevice)
		require.NoError(t, err)
		l.attach(t, i, tunnel, end, tunnelHooks[0], link.Tail())
		for _, nic := range l.indexes(t, i) {
			l.attach(t, i, nic, end, hooks[0], link.Tail())
		}
	}
	l.expectSpreads(t, []transfers{{4, traffic.Up}, {6, traffic.Down}})
}

func TestAnothersFilterAndQdiscStay(t *testing.T) {
	l, client, server := newPair(t, Options{Clsact: true})
	other := newCounter(t)
	blue := l.indexes(t, 0)["blue"]
	require.NoError(t, l.Nodes[0].Do(func() error {
		if err := netlink.QdiscAdd(attach.ClsactQdisc(blue)); err != nil {
			return err
		}
		return netlink.FilterReplace(&netlink.BpfFilter{
			FilterAttrs:  netlink.FilterAttrs{LinkIndex: blue, Parent: netlink.HANDLE_MIN_EGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 1},
			Fd:           other.program.FD(),
			Name:         "other",
			DirectAction: true,
		})
	}))
	l.applyAll(t)
	l.sent(t, 0, func() {
		transfer(t, client, server, 4, traffic.Options{Duration: 600 * time.Millisecond})
	}).expectShares(t, "beside another's filter", evenShares)
	if count := other.count(t); count < 500 {
		t.Errorf("the other filter saw %d packets", count)
	}
	require.NoError(t, l.Nodes[0].Do(func() error { return l.datapaths[0].Remove(t.Context()) }))
	if filters := l.filters(t, 0, blue, hooks[0]); !slices.Equal(filters, []string{"other"}) || !l.hasClsact(t, 0, blue) {
		t.Errorf("after the removal the filters are %v", filters)
	}
	if l.hasClsact(t, 0, l.indexes(t, 0)["green"]) {
		t.Error("a clsact qdisc without filters is left")
	}
	before := other.count(t)
	transfer(t, client, server, 4, traffic.Options{Duration: 300 * time.Millisecond})
	if other.count(t) == before {
		t.Error("the other filter no longer runs")
	}
}
