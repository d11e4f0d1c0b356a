// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
)

var hooks = []attach.Hook{
	{Name: "in", Type: ebpf.AttachTCXIngress, Anchor: link.Head, Handle: 1},
	{Name: "out", Type: ebpf.AttachTCXEgress, Anchor: link.Tail, Handle: 2},
}

// node is a namespace with the interfaces eth0 and eth1.
type node struct {
	*network.Namespace
	t       *testing.T
	options attach.Options
	indexes []int
}

func newNode(t *testing.T, clsact bool) *node {
	t.Helper()
	n := &node{Namespace: network.NamespaceForTest(t), t: t}
	n.options = attach.Options{LinkDirectory: filepath.Join(testutil.BPFFS(t), "links"), Hooks: hooks, Clsact: clsact}
	peer := network.NamespaceForTest(t)
	for _, name := range []string{"eth0", "eth1"} {
		require.NoError(t, network.Connect(n.Namespace, name, peer, name, network.Options{}))
		index, err := n.Index(name)
		require.NoError(t, err)
		n.indexes = append(n.indexes, index)
	}
	return n
}

// inside runs a step of a test in the node's namespace.
func (n *node) inside(step func()) {
	n.t.Helper()
	require.NoError(n.t, n.Do(func() error { step(); return nil }))
}

// open is an agent that has just started.
func (n *node) open() *attach.Interfaces {
	n.t.Helper()
	i := attach.New(n.options)
	require.NoError(n.t, i.Choose(n.program()))
	return i
}

// program does nothing, and is another one each time.
func (n *node) program() *ebpf.Program {
	n.t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "nothing", Type: ebpf.SchedCLS, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	require.NoError(n.t, err)
	n.t.Cleanup(func() { program.Close() })
	return program
}

// expectPrograms checks which programs the hooks of an interface run, in order.
func (n *node) expectPrograms(index int, want ...*ebpf.Program) {
	n.t.Helper()
	var got, wanted []ebpf.ProgramID
	for _, hook := range hooks {
		got = append(append(got, n.byTCX(index, hook)...), n.byFilter(index, hook)...)
	}
	for _, program := range want {
		wanted = append(wanted, idOf(n.t, program))
	}
	if !slices.Equal(got, wanted) {
		n.t.Errorf("interface %d runs the programs %v, wanted %v", index, got, wanted)
	}
}

func (n *node) byTCX(index int, hook attach.Hook) (ids []ebpf.ProgramID) {
	n.t.Helper()
	result, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook.Type})
	if errors.Is(err, ebpf.ErrNotSupported) || errors.Is(err, unix.EINVAL) {
		return nil // Linux before 6.6 has no TCX
	}
	require.NoError(n.t, err)
	for _, program := range result.Programs {
		ids = append(ids, program.ID)
	}
	return ids
}

func (n *node) byFilter(index int, hook attach.Hook) (ids []ebpf.ProgramID) {
	n.t.Helper()
	filters, err := attach.Filters(index, hook)
	require.NoError(n.t, err)
	for _, filter := range filters {
		ids = append(ids, ebpf.ProgramID(filter.(*netlink.BpfFilter).Id))
	}
	return ids
}

func idOf(t *testing.T, program *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := program.Info()
	require.NoError(t, err)
	id, _ := info.ID()
	return id
}

// hasClsact tells whether the interface has that qdisc.
func (n *node) hasClsact(index int) bool {
	n.t.Helper()
	device, err := netlink.LinkByIndex(index)
	require.NoError(n.t, err)
	qdiscs, err := netlink.QdiscList(device)
	require.NoError(n.t, err)
	return slices.ContainsFunc(qdiscs, func(qdisc netlink.Qdisc) bool { return qdisc.Type() == "clsact" })
}

// both runs a test for each way of attaching that the kernel has.
func both(t *testing.T, test func(t *testing.T, n *node)) {
	for mode, clsact := range map[string]bool{"tcx": false, "clsact": true} {
		t.Run(mode, func(t *testing.T) {
			n := newNode(t, clsact)
			n.inside(func() {
				if got := n.open().Mode(); got != mode {
					t.Skipf("this kernel attaches by %s", got)
				}
				test(t, n)
			})
		})
	}
}

func TestProgramsAreAttachedToTheirHooksAndTakenOff(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		i, in, out := n.open(), n.program(), n.program()
		for _, index := range n.indexes {
			require.NoError(t, i.Attach(index, in, out))
			n.expectPrograms(index, in, out)
		}
		attached, err := i.Attached()
		require.NoError(t, err)
		require.ElementsMatch(t, n.indexes, slices.Collect(maps.Keys(attached)))
		require.NoError(t, i.Detach(n.indexes[0]))
		require.NoError(t, i.Detach(n.indexes[0]), "a second time there is nothing to take off")
		n.expectPrograms(n.indexes[0])
		n.expectPrograms(n.indexes[1], in, out)
	})
}

func TestTheNextAgentReplacesPrograms(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		require.NoError(t, n.open().Attach(n.indexes[0], n.program(), n.program()))
		next, in, out := n.open(), n.program(), n.program()
		attached, err := next.Attached()
		require.NoError(t, err)
		require.Equal(t, map[int]bool{n.indexes[0]: true}, attached)
		require.NoError(t, next.Attach(n.indexes[0], in, out))
		n.expectPrograms(n.indexes[0], in, out)
	})
}

// An agent of another kernel, or with another setting, attached in the other way.
func TestWhatWasAttachedTheOtherWayIsTakenOffAfterwards(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		require.NoError(t, n.open().Attach(n.indexes[0], n.program(), n.program()))
		n.options.Clsact = !n.options.Clsact
		next, in, out := n.open(), n.program(), n.program()
		require.NoError(t, next.Attach(n.indexes[0], in, out))
		require.NoError(t, next.DetachOther())
		n.expectPrograms(n.indexes[0], in, out)
		require.NoError(t, next.DetachOther(), "a second time there is nothing to do")
	})
}

func TestRemoveNeedsNoChoiceAndLeavesNothing(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		require.NoError(t, n.open().Attach(n.indexes[0], n.program(), n.program()))
		n.options.Clsact = !n.options.Clsact
		require.NoError(t, n.open().Attach(n.indexes[1], n.program(), n.program()))
		remover := attach.New(n.options)
		require.NoError(t, remover.Remove())
		require.Empty(t, remover.Mode())
		for _, index := range n.indexes {
			n.expectPrograms(index)
			require.False(t, n.hasClsact(index), "the clsact qdisc of interface %d", index)
		}
		entries, err := os.ReadDir(n.options.LinkDirectory)
		require.NoError(t, err)
		require.Empty(t, entries)
	})
}

func TestAQdiscThatSomebodyDeletedIsPutBackWithTheFilters(t *testing.T) {
	n := newNode(t, true)
	n.inside(func() {
		i, in, out := n.open(), n.program(), n.program()
		wanted := map[int]bool{n.indexes[0]: true}
		require.NoError(t, i.AttachOnly(wanted, in, out))
		require.NoError(t, netlink.QdiscDel(attach.ClsactQdisc(n.indexes[0])))
		n.expectPrograms(n.indexes[0])
		require.NoError(t, i.AttachOnly(wanted, in, out))
		n.expectPrograms(n.indexes[0], in, out)
	})
}

func TestFiltersOfOthersStayWithTheirQdisc(t *testing.T) {
	n := newNode(t, true)
	n.inside(func() {
		index := n.indexes[0]
		i, other := n.open(), n.program()
		require.NoError(t, i.Attach(index, n.program(), n.program()))
		require.NoError(t, netlink.FilterAdd(&netlink.BpfFilter{
			FilterAttrs: netlink.FilterAttrs{LinkIndex: index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Protocol: unix.ETH_P_ALL, Priority: 7},
			Fd:          other.FD(), Name: "another", DirectAction: true,
		}))
		require.NoError(t, i.Remove())
		n.expectPrograms(index, other)
		require.True(t, n.hasClsact(index))
	})
}

// The index of a NIC that was unplugged can be given to another one.
func TestALinkOfAnInterfaceThatIsGoneIsReplaced(t *testing.T) {
	n := newNode(t, false)
	n.inside(func() {
		i := n.open()
		if i.Mode() != "tcx" {
			t.Skip("this kernel has no TCX")
		}
		require.NoError(t, i.Attach(n.indexes[0], n.program(), n.program()))
		device, err := netlink.LinkByIndex(n.indexes[0])
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(device))
		for _, hook := range hooks {
			old := filepath.Join(n.options.LinkDirectory, hook.Name+"_")
			pinned, err := link.LoadPinnedLink(old+strconv.Itoa(n.indexes[0]), nil)
			require.NoError(t, err)
			require.NoError(t, pinned.Unpin())
			require.NoError(t, pinned.Pin(old+strconv.Itoa(n.indexes[1])))
			require.NoError(t, pinned.Close())
		}
		in, out := n.program(), n.program()
		require.NoError(t, i.Attach(n.indexes[1], in, out))
		n.expectPrograms(n.indexes[1], in, out)
	})
}

func TestAnInterfaceThatIsNotThereIsNamed(t *testing.T) {
	both(t, func(t *testing.T, n *node) {
		const missing = 4711
		err := n.open().Attach(missing, n.program(), n.program())
		require.ErrorContains(t, err, "interface 4711")
		filters, err := attach.Filters(missing, hooks[0])
		require.NoError(t, err)
		require.Empty(t, filters)
		require.NoError(t, n.open().Detach(missing))
	})
}

// Close lets go of a link only after a while, and two kinds of interfaces ask by the same program.
func TestTheKernelIsAskedForTCXWhileTheProgramIsThereStill(t *testing.T) {
	n := newNode(t, false)
	program := n.program()
	n.inside(func() {
		for range 20 {
			supported, err := attach.SupportsTCX(program)
			require.NoError(t, err)
			require.True(t, supported)
		}
		before, err := link.AttachTCX(link.TCXOptions{Interface: 1, Program: program, Attach: ebpf.AttachTCXIngress})
		require.NoError(t, err)
		defer before.Close()
		supported, err := attach.SupportsTCX(program)
		require.NoError(t, err)
		require.True(t, supported)
	})
}
