// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/endpoint"
)

// newAttachments is a table of 16 slots.
func newAttachments(t *testing.T) *attachments {
	t.Helper()
	array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 16, Flags: unix.BPF_F_MMAPABLE})
	require.NoError(t, err)
	t.Cleanup(func() { array.Close() })
	overflow, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 24, MaxEntries: 8})
	require.NoError(t, err)
	t.Cleanup(func() { overflow.Close() })
	a, err := mapAttachments(array, overflow)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.unmap()) })
	return a
}

func expectChain(t *testing.T, a *attachments, index int, chain uint64) {
	t.Helper()
	got, err := a.get(index)
	require.NoError(t, err)
	if got.Chain != chain || chain != 0 && got.Interface != uint32(index) {
		t.Errorf("interface %d has %+v instead of the chain %d", index, got, chain)
	}
}

func TestInterfacesThatShareASlotAreToldApart(t *testing.T) {
	a := newAttachments(t)
	for _, index := range []uint32{5, 21, 37} {
		require.NoError(t, a.put(Attachment{Interface: index, Endpoint: index, Chain: uint64(index) * 10}))
	}
	expectChain(t, a, 5, 50)
	expectChain(t, a, 21, 210)
	require.NoError(t, a.remove(5)) // 21 stays where it was, until it is written again
	expectChain(t, a, 5, 0)
	expectChain(t, a, 21, 210)
	require.NoError(t, a.put(Attachment{Interface: 21, Endpoint: 21, Chain: 211}))
	expectChain(t, a, 21, 211)
	expectChain(t, a, 37, 370)
	require.NoError(t, a.remove(21))
	expectChain(t, a, 21, 0)
	require.NoError(t, a.remove(37))
	require.NoError(t, a.remove(37)) // it may be repeated
	expectChain(t, a, 37, 0)
}

func TestTheGenerationBelongsToThePrograms(t *testing.T) {
	a := newAttachments(t)
	require.NoError(t, a.put(Attachment{Interface: 5, Chain: 1}))
	slot, err := a.slot(5)
	require.NoError(t, err)
	slot.Generation = 7
	require.NoError(t, a.put(Attachment{Interface: 5, Chain: 2}))
	if slot.Generation != 7 {
		t.Errorf("the generation is %d", slot.Generation)
	}
	require.NoError(t, a.put(Attachment{Interface: 21, Chain: 1}))
	first, err := a.get(21)
	require.NoError(t, err)
	require.NoError(t, a.put(Attachment{Interface: 21, Chain: 2}))
	second, err := a.get(21)
	require.NoError(t, err)
	if first.Generation == second.Generation {
		t.Error("in the overflow, where programs' changes may be lost, it stays the same")
	}
}

func TestCountersAreCarriedOnceToRulesThatStay(t *testing.T) {
	before := content{Rule: [endpoint.MaxRules]uint64{11, 22, 33}}
	after := content{Rule: [endpoint.MaxRules]uint64{33, 44, 11}}
	old := replaced{rules: sameRules(before, after), copied: row{{1, 10, 100}, {2, 20, 200}, {3, 30, 300}}}
	if carried := old.carried(); carried != (row{{3, 30, 300}, {}, {1, 10, 100}}) {
		t.Errorf("carried are %v", carried[:4])
	}
}
