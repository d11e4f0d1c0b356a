// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/internal/testutil"
)

// seeing is a test on a node whose kernel can tell what is attached.
func seeing(t *testing.T, test func(n *node, i *attach.Interfaces)) {
	t.Helper()
	n := newNode(t, false)
	n.inside(func() {
		i := n.open()
		if i.Mode() != "tcx" {
			t.Skip("this kernel has no TCX")
		}
		require.NotNil(t, attach.Look(), "what is attached, by the iterator over links")
		test(n, i)
	})
}

// detach takes a program off as somebody else would, and leaves the pin.
func (n *node) detach(hook attach.Hook, index int) {
	n.t.Helper()
	pinned, err := link.LoadPinnedLink(n.pin(hook, index), nil)
	require.NoError(n.t, err)
	defer pinned.Close()
	require.NoError(n.t, pinned.Detach())
}

func (n *node) pin(hook attach.Hook, index int) string {
	return filepath.Join(n.options.LinkDirectory, hook.Name+"_"+strconv.Itoa(index))
}

func (n *node) other(index int, at ebpf.AttachType, anchor link.Anchor) *ebpf.Program {
	n.t.Helper()
	other := n.program()
	attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: other, Attach: at, Anchor: anchor})
	require.NoError(n.t, err)
	n.t.Cleanup(func() { attached.Close() })
	return other
}

// The kernel is not asked again for what was seen: that is what Look is for.
func TestWhatWasSeenInItsPlaceIsLeftAlone(t *testing.T) {
	seeing(t, func(n *node, i *attach.Interfaces) {
		index, in, out := n.indexes[0], n.program(), n.program()
		require.NoError(t, i.Ensure(attach.Look(), index, in, out))
		n.expectPrograms(index, in, out)
		seen := attach.Look()
		n.detach(hooks[0], index)
		require.NoError(t, i.Ensure(seen, index, in, out))
		n.expectPrograms(index, out)
	})
}

func TestWhatIsNotSeenInItsPlaceIsPutThere(t *testing.T) {
	changes := map[string]func(n *node, index int, in, out **ebpf.Program){
		"a program that was taken off": func(n *node, index int, _, _ **ebpf.Program) { n.detach(hooks[0], index) },
		"a program whose pin was removed": func(n *node, index int, _, _ **ebpf.Program) {
			require.NoError(n.t, os.Remove(n.pin(hooks[1], index)))
		},
		"a new program":                func(n *node, _ int, in, _ **ebpf.Program) { *in = n.program() },
		"new programs in both places":  func(n *node, _ int, in, out **ebpf.Program) { *in, *out = n.program(), n.program() },
		"nothing, where nobody looked": func(*node, int, **ebpf.Program, **ebpf.Program) {},
	}
	for what, change := range changes {
		t.Run(what, func(t *testing.T) {
			seeing(t, func(n *node, i *attach.Interfaces) {
				n.t = t
				index, in, out := n.indexes[0], n.program(), n.program()
				require.NoError(t, i.Attach(index, in, out))
				change(n, index, &in, &out)
				// The kernel takes off what nobody refers to any more when it gets to it: a round later.
				_, err := testutil.Until(10*time.Second, func() error { return i.Ensure(attach.Look(), index, in, out) })
				require.NoError(t, err)
				n.expectPrograms(index, in, out)
				for _, hook := range hooks {
					require.FileExists(t, n.pin(hook, index))
				}
			})
		})
	}
}

// One link may have the index of another namespace's interface, or of one that is gone.
func TestAnotherInterfaceIsNotTakenForTheOneThatWasSeen(t *testing.T) {
	seeing(t, func(n *node, i *attach.Interfaces) {
		in, out := n.program(), n.program()
		require.NoError(t, i.Attach(n.indexes[0], in, out))
		require.NoError(t, i.Ensure(attach.Look(), n.indexes[1], in, out))
		for _, index := range n.indexes {
			n.expectPrograms(index, in, out)
		}
	})
}

func TestAProgramThatMustBeFirstOrAfterAnotherIsSeenOutOfPlace(t *testing.T) {
	seeing(t, func(n *node, _ *attach.Interfaces) {
		index, before := n.indexes[0], ebpf.ProgramID(0)
		n.options.Hooks = []attach.Hook{
			{Name: "first", Type: ebpf.AttachTCXIngress, Anchor: link.Head, First: true},
			{Name: "after", Type: ebpf.AttachTCXEgress, Anchor: link.Tail, After: func(int) ebpf.ProgramID { return before }},
		}
		i, first, after := n.open(), n.program(), n.program()
		require.NoError(t, i.Attach(index, first, after))

		head := n.other(index, ebpf.AttachTCXIngress, link.Head())
		predecessor := n.other(index, ebpf.AttachTCXEgress, link.Tail())
		before = idOf(t, predecessor)
		n.expectPrograms(index, head, first, after, predecessor)
		require.NoError(t, i.Ensure(attach.Look(), index, first, after))
		n.expectPrograms(index, first, head, predecessor, after)

		seen := attach.Look()
		n.other(index, ebpf.AttachTCXIngress, link.Head())
		require.NoError(t, i.Ensure(seen, index, first, after), "both were seen in their places")
		require.NotEqual(t, idOf(t, first), n.byTCX(index, n.options.Hooks[0])[0])
	})
}

func TestAProgramThatMustBeLastIsSeenOutOfPlace(t *testing.T) {
	seeing(t, func(n *node, _ *attach.Interfaces) {
		index := n.indexes[0]
		n.options.Hooks = []attach.Hook{{Name: "last", Type: ebpf.AttachTCXEgress, Anchor: link.Tail, Last: true}}
		i, last := n.open(), n.program()
		require.NoError(t, i.Attach(index, last))
		tail := n.other(index, ebpf.AttachTCXEgress, link.Tail())
		n.expectPrograms(index, last, tail)
		require.NoError(t, i.Ensure(attach.Look(), index, last))
		n.expectPrograms(index, tail, last)

		seen := attach.Look()
		n.other(index, ebpf.AttachTCXEgress, link.Tail())
		require.NoError(t, i.Ensure(seen, index, last), "it was seen in its place")
		require.NotEqual(t, idOf(t, last), n.byTCX(index, n.options.Hooks[0])[2])
	})
}

// BenchmarkLook is what a part pays in a round, with as many links as the machine has.
func BenchmarkLook(b *testing.B) {
	for b.Loop() {
		attach.Look()
	}
}
