// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

// noteLocal sets the bits of addresses in the filter of local addresses. The
// programs set bits at the same time, so it is done in the map's own memory,
// one atomic step for each.
func (d *Datapath) noteLocal(addresses []netip.Addr) error {
	const size = int(unsafe.Sizeof(uplink.ToUplinkFilter{}))
	memory, err := unix.Mmap(d.loaded.Value.maps().LocalFilter.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping the filter of local addresses: %w", err)
	}
	filter := (*uplink.ToUplinkFilter)(unsafe.Pointer(unsafe.SliceData(memory)))
	for _, address := range addresses {
		bit := uplink.FilterBit(bpf.Words(address))
		atomic.OrUint64(&filter.Bits[bit/64], 1<<(bit%64))
	}
	if err := unix.Munmap(memory); err != nil {
		return fmt.Errorf("unmapping the filter of local addresses: %w", err)
	}
	return nil
}
