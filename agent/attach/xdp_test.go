// SPDX-License-Identifier: Apache-2.0

package attach_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/internal/testutil"
)

// xdpProgram lets everything pass, and is another one each time.
func xdpProgram(t *testing.T, name string) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.XDP, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

// xdpOf is what an interface has at its XDP hook; 0 for nothing.
func xdpOf(t *testing.T, index int) (ebpf.ProgramID, uint32) {
	t.Helper()
	device, err := netlink.LinkByIndex(index)
	require.NoError(t, err)
	if xdp := device.Attrs().Xdp; xdp != nil && xdp.Attached {
		return ebpf.ProgramID(xdp.ProgId), xdp.AttachMode
	}
	return 0, 0
}

// byDriver is XDP_ATTACHED_DRV of linux/if_link.h.
const byDriver = 1

func expectXDP(t *testing.T, index int, want *ebpf.Program) {
	t.Helper()
	got, mode := xdpOf(t, index)
	if want == nil {
		require.Zero(t, got, "interface %d has a program at its XDP hook", index)
		return
	}
	require.Equal(t, idOf(t, want), got)
	require.EqualValues(t, byDriver, mode, "the program runs in the driver")
}

func newXDP(t *testing.T) (*node, attach.NativeXDP) {
	t.Helper()
	return newNode(t, false), attach.NativeXDP{Directory: filepath.Join(testutil.BPFFS(t), "xdp")}
}

func TestAProgramRunsInADriverThatRunsThem(t *testing.T) {
	n, xdp := newXDP(t)
	n.inside(func() {
		first, next := xdpProgram(t, "at_nic"), xdpProgram(t, "at_nic")
		require.NoError(t, xdp.Attach(n.indexes[0], first))
		require.NoError(t, xdp.Attach(n.indexes[1], first))
		expectXDP(t, n.indexes[0], first)
		require.NoError(t, attach.NativeXDP{Directory: xdp.Directory}.Attach(n.indexes[0], next), "the next agent's")
		expectXDP(t, n.indexes[0], next)
		require.NoError(t, xdp.DetachOthers(func(index int) bool { return index == n.indexes[1] }))
		expectXDP(t, n.indexes[0], nil)
		expectXDP(t, n.indexes[1], first)
		require.NoError(t, xdp.Remove())
		expectXDP(t, n.indexes[1], nil)
		require.NoDirExists(t, xdp.Directory)
		require.NoError(t, xdp.Remove(), "a second time there is nothing to take off")
	})
}

func TestAnothersProgramIsLeftAloneAndNamed(t *testing.T) {
	for mode, flags := range map[string]link.XDPAttachFlags{"in the driver": link.XDPDriverMode, "in the generic mode": link.XDPGenericMode} {
		t.Run(mode, func(t *testing.T) {
			n, xdp := newXDP(t)
			n.inside(func() {
				another := xdpProgram(t, "another")
				attached, err := link.AttachXDP(link.XDPOptions{Program: another, Interface: n.indexes[0], Flags: flags})
				require.NoError(t, err)
				defer attached.Close()
				err = xdp.Attach(n.indexes[0], xdpProgram(t, "at_nic"))
				require.ErrorIs(t, err, attach.ErrOccupied)
				require.ErrorContains(t, err, "another (id ")
				got, _ := xdpOf(t, n.indexes[0])
				require.Equal(t, idOf(t, another), got)
				require.NoError(t, xdp.Remove())
				got, _ = xdpOf(t, n.indexes[0])
				require.Equal(t, idOf(t, another), got, "also when ours are taken off")
				require.NoError(t, attached.Close())
				require.NoError(t, xdp.Attach(n.indexes[0], xdpProgram(t, "at_nic")), "once it has gone")
			})
		})
	}
}

// Kernels have no native mode for these, whatever is below them.
func TestADeviceWithoutNativeXDPIsRefused(t *testing.T) {
	n, xdp := newXDP(t)
	for name, device := range map[string]netlink.Link{
		"bridge":  &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}},
		"macvlan": &netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "macvlan", ParentIndex: n.indexes[0]}, Mode: netlink.MACVLAN_MODE_BRIDGE},
	} {
		t.Run(name, func(t *testing.T) {
			n.inside(func() {
				require.NoError(t, netlink.LinkAdd(device))
				index := device.Attrs().Index
				err := xdp.Attach(index, xdpProgram(t, "at_nic"))
				require.ErrorIs(t, err, attach.ErrUnsupported)
				require.ErrorContains(t, err, "the driver refuses it")
				expectXDP(t, index, nil)
			})
		})
	}
}

func TestALinkAtTheXDPHookOfAnInterfaceThatIsGoneIsReplaced(t *testing.T) {
	n, xdp := newXDP(t)
	n.inside(func() {
		program := xdpProgram(t, "at_nic")
		require.NoError(t, xdp.Attach(n.indexes[0], program))
		device, err := netlink.LinkByIndex(n.indexes[0])
		require.NoError(t, err)
		require.NoError(t, netlink.LinkDel(device))
		entries, err := os.ReadDir(xdp.Directory)
		require.NoError(t, err)
		require.Len(t, entries, 1)
		pinned, err := link.LoadPinnedLink(filepath.Join(xdp.Directory, entries[0].Name()), nil)
		require.NoError(t, err)
		require.NoError(t, pinned.Unpin())
		require.NoError(t, pinned.Pin(filepath.Join(xdp.Directory, "at_nic_"+strconv.Itoa(n.indexes[1]))))
		require.NoError(t, pinned.Close())
		require.NoError(t, xdp.Attach(n.indexes[1], program))
		expectXDP(t, n.indexes[1], program)
		require.NoError(t, xdp.Remove())
	})
}
