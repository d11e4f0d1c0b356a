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
	// ahead is what the clock shows at least since askFlows has moved it; 0 where it has not.
	ahead uint32
}

func (n *nodeEntry) use(m *ebpf.Map) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.m = m
}

func (n *nodeEntry) put(value *uplink.ToUplinkNode) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	value.Clock = max(value.Clock, n.ahead)
	return n.m.Put(uint32(0), value)
}

// askFlows has the programs look each flow's next packet up among all flows, where some were
// changed or taken away: until the clock moves, those of a hot flow may use what was copied.
func (n *nodeEntry) askFlows() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change(func(shown uint32) uint32 {
		n.ahead = shown + 1
		return n.ahead
	})
}

// moveClock writes the time where another step has begun.
func (n *nodeEntry) moveClock(now uint32) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.change(func(uint32) uint32 { return max(now, n.ahead) })
}

// change gives the clock another time than it shows.
func (n *nodeEntry) change(to func(shown uint32) uint32) error {
	if n.m == nil {
		return nil
	}
	var value uplink.ToUplinkNode
	if err := n.m.Lookup(uint32(0), &value); err != nil {
		return fmt.Errorf("reading the node's clock: %w", err)
	}
	now := to(value.Clock)
	if value.Clock == now {
		return nil
	}
	value.Clock = now
	if err := n.m.Put(uint32(0), &value); err != nil {
		return fmt.Errorf("writing the node's clock: %w", err)
	}
	return nil
}
