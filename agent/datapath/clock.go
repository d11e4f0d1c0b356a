// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf/uplink"
)

// clockStep is how exactly the programs note when a flow was used: each writes its entry
// once in this time at most.
const clockStep = 16

// clock is what the programs note as the time.
func clock() uint32 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return uint32(now.Sec) / clockStep * clockStep
}

// nodeEntry is the entry of the node's paths and clock. The clock moves between the rounds
// too: with each step flows ask their routes again, and rounds may be far apart.
type nodeEntry struct {
	mu sync.Mutex
	m  *ebpf.Map // nil while nothing is loaded
}

func (n *nodeEntry) use(m *ebpf.Map) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.m = m
}

func (n *nodeEntry) put(value *uplink.ToUplinkNode) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.m.Put(uint32(0), value)
}

// moveClock writes the time where another step has begun.
func (n *nodeEntry) moveClock(now uint32) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.m == nil {
		return nil
	}
	var value uplink.ToUplinkNode
	if err := n.m.Lookup(uint32(0), &value); err != nil {
		return fmt.Errorf("reading the node's clock: %w", err)
	}
	if value.Clock == now {
		return nil
	}
	value.Clock = now
	if err := n.m.Put(uint32(0), &value); err != nil {
		return fmt.Errorf("writing the node's clock: %w", err)
	}
	return nil
}
