// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/bpf/packettest"
)

// at lists the programs of the VM's interface.
func (l *lab) at(t *testing.T, hook ebpf.AttachType) (ids []ebpf.ProgramID) {
	t.Helper()
	index := indexOf(t, l.Nodes[0], l.Pod("guest-1-1").HostInterface)
	require.NoError(t, l.Nodes[0].Do(func() error {
		query, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: hook})
		for _, program := range query.Programs {
			ids = append(ids, program.ID)
		}
		return err
	}))
	return ids
}

func idOf(t *testing.T, program *ebpf.Program) ebpf.ProgramID {
	t.Helper()
	info, err := program.Info()
	require.NoError(t, err)
	id, _ := info.ID()
	return id
}

func TestAllOtherProgramsSeeTheRealPorts(t *testing.T) {
	l := newLab(t)
	l.apply(t)
	if mode := l.part.interfaces.Mode(); mode != "tcx" {
		t.Skipf("this kernel attaches by %s, where priorities say who is first", mode)
	}
	empty, err := packettest.NewEmpty()
	require.NoError(t, err)
	defer empty.Close()
	index := indexOf(t, l.Nodes[0], l.Pod("guest-1-1").HostInterface)
	for hook, anchor := range map[ebpf.AttachType]link.Anchor{ebpf.AttachTCXIngress: link.Head(), ebpf.AttachTCXEgress: link.Tail()} {
		require.NoError(t, l.Nodes[0].Do(func() error {
			attached, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: empty, Attach: hook, Anchor: anchor})
			if err == nil {
				t.Cleanup(func() { attached.Close() })
			}
			return err
		}))
	}
	other, from, to := idOf(t, empty), idOf(t, l.part.loaded.Value.from.FromGuest), idOf(t, l.part.loaded.Value.to.ToGuest)
	require.Equal(t, []ebpf.ProgramID{other, from}, l.at(t, ebpf.AttachTCXIngress))
	require.Equal(t, []ebpf.ProgramID{to, other}, l.at(t, ebpf.AttachTCXEgress))
	l.apply(t)
	require.Equal(t, []ebpf.ProgramID{from, other}, l.at(t, ebpf.AttachTCXIngress))
	require.Equal(t, []ebpf.ProgramID{other, to}, l.at(t, ebpf.AttachTCXEgress))
}

func TestSubflowsAreAnnouncedWhereTheKernelHasNoTCX(t *testing.T) {
	l := newLab(t)
	require.NoError(t, l.part.Close())
	l.options.Clsact = true
	l.begin()
	l.follow(t)
	l.apply(t)
	client, server := l.open(t, 4, 1<<20)
	l.carryUntil(t, client, server, 3)
	vm := l.Pod("guest-1-1")
	require.NoError(t, vm.Node.Do(func() error {
		for _, hook := range hooks {
			filters, err := attach.Filters(indexOf(t, vm.Node, vm.HostInterface), hook)
			if err != nil {
				return err
			}
			require.Len(t, filters, 1)
			require.True(t, slices.Contains([]uint16{attach.FilterPriority - 1, attach.FilterPriority + 1}, filters[0].Attrs().Priority))
		}
		return nil
	}))
}
