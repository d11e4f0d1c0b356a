// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/uplink"
)

// LoadSlice is the slice of time in which the programs count what each flow moves.
const LoadSlice = time.Duration(1 << uplink.SliceBits)

// Loads are what flows moved on the node's paths since the programs were loaded.
type Loads struct {
	// Paths that can send are so many.
	Paths int
	// Of has them by the paths' numbers.
	Of [uplink.MaxPaths]Load
}

// Load are sums over flows and slices of time, of what the node sent and of what it
// received: of what a flow moved in a slice, and of its square.
type Load struct{ Moved, Squares [2]uint64 }

// Since is by how much it grew; nothing where it may have begun anew.
func (l Load) Since(before Load) (grown Load) {
	for d := range l.Moved {
		if l.Moved[d] < before.Moved[d] || l.Squares[d] < before.Squares[d] {
			return Load{}
		}
		grown.Moved[d], grown.Squares[d] = l.Moved[d]-before.Moved[d], l.Squares[d]-before.Squares[d]
	}
	return grown
}

// Add adds another one.
func (l *Load) Add(other Load) {
	for d := range l.Moved {
		l.Moved[d] += other.Moved[d]
		l.Squares[d] += other.Squares[d]
	}
}

// Loads may be called at any time. There is none while nothing is loaded.
func (d *Datapath) Loads() (Loads, error) { return d.loads.read() }

// EndpointLoads are the same of the flows of each endpoint, by its number.
func (d *Datapath) EndpointLoads() ([]Load, error) { return d.loads.readEndpoints() }

// loadTable reads the loads beside the rounds.
type loadTable struct {
	mu   sync.Mutex
	maps *uplink.ToUplinkMaps // nil while nothing is loaded
	// What is read goes here: it is read several times a second.
	numbers [uplink.MaxEndpoints]uint32
	values  [uplink.MaxEndpoints]uplink.ToUplinkLoad
}

func (t *loadTable) use(maps *uplink.ToUplinkMaps) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maps = maps
}

func (t *loadTable) read() (loads Loads, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.maps == nil {
		return loads, nil
	}
	var node uplink.ToUplinkNode
	if err := t.maps.Node.Lookup(uint32(0), &node); err != nil {
		return loads, fmt.Errorf("reading which paths can send: %w", err)
	}
	loads.Paths = bits.OnesCount32(node.PathsUp)
	return loads, t.readAll(t.maps.PathLoads, loads.Of[:])
}

func (t *loadTable) readEndpoints() ([]Load, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.maps == nil {
		return nil, nil
	}
	loads := make([]Load, uplink.MaxEndpoints)
	return loads, t.readAll(t.maps.EndpointLoads, loads)
}

// readAll reads an array of them.
func (t *loadTable) readAll(from *ebpf.Map, loads []Load) error {
	numbers, values := t.numbers[:len(loads)], t.values[:len(loads)]
	count, err := from.BatchLookup(new(ebpf.MapBatchCursor), numbers, values, nil)
	if count != len(loads) {
		return fmt.Errorf("reading %d loads, found %d: %w", len(loads), count, err)
	}
	for i, number := range numbers {
		loads[number] = Load{values[i].Moved, values[i].Squares}
	}
	return nil
}
