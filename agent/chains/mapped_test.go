// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestOfAnArrayThatIsMappedOnlyWhatWasAskedForIs(t *testing.T) {
	array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 24, MaxEntries: 1000, Flags: unix.BPF_F_MMAPABLE})
	require.NoError(t, err)
	defer array.Close()
	mapped, err := mapArray[Attachment](array)
	require.NoError(t, err)
	for _, index := range []int{0, 3, 999} { // the last part is not whole
		value, err := mapped.at(index)
		require.NoError(t, err)
		value.Endpoint = uint32(index + 1)
		var seen Attachment
		require.NoError(t, array.Lookup(uint32(index), &seen))
		if seen.Endpoint != uint32(index+1) {
			t.Errorf("of value %d the kernel sees %+v", index, seen)
		}
		again, err := mapped.at(index)
		require.NoError(t, err)
		if again != value {
			t.Errorf("value %d is mapped twice", index)
		}
	}
	if len(mapped.parts) != 2 {
		t.Errorf("%d parts are mapped for values of the first and the last", len(mapped.parts))
	}
	if _, err := mapped.at(1000); err == nil {
		t.Error("there is a value beyond the last")
	}
	require.NoError(t, mapped.unmap())
	if len(mapped.parts) != 0 {
		t.Errorf("%d parts are left", len(mapped.parts))
	}
}

func TestAnArrayOfOtherValuesIsNotMapped(t *testing.T) {
	array, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE})
	require.NoError(t, err)
	defer array.Close()
	if _, err := mapArray[Attachment](array); err == nil {
		t.Error("values of 16 bytes are taken for such of 24")
	}
}
