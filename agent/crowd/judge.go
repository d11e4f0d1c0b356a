// SPDX-License-Identifier: Apache-2.0

package crowd

import (
	"time"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/bpf/uplink"
)

const (
	// fills is how many flows keep a path busy, whatever each of them waits for.
	fills = 24
	// few is how many flows for each path a tenant has whose connections never wait,
	// whatever others do.
	few = 4
	// most is how many connections of a tenant may go on at once, at most.
	most = 16
	// memory is how long it takes until a crowd that has gone is forgotten, about.
	memory = time.Second
)

// judge tells how crowded the paths are, and by whom, from what the programs add up.
type judge struct {
	last datapath.Loads
	at   time.Time
	// flows are as many equal ones as share each path, and all paths together, as theirs
	// do.
	flows [uplink.MaxPaths]float64
	all   float64
	// paths that can send are so many, and crowded what was found last.
	paths   int
	crowded bool
	// crowds are those of the tenants, while the paths are crowded.
	crowds map[string]*crowd
}

// crowd is what a tenant's flows moved.
type crowd struct {
	last  datapath.Load
	flows float64
}

// isCrowded tells whether flows fill the paths: as many as would fill more than half of
// them. Paths that nobody may use, or whose capacity is small beside that of others, and
// so have few flows, do not keep the others from being full. A large flow among many that
// send little shows that there is room.
func (j *judge) isCrowded(loads datapath.Loads, now time.Time) bool {
	passed := now.Sub(j.at)
	before := j.last
	j.last, j.at = loads, now
	j.paths = loads.Paths
	if passed > 10*interval { // nobody looked
		*j = judge{last: loads, at: now, paths: loads.Paths}
		return false
	}
	var all datapath.Load
	for path := range j.flows {
		grown := loads.Of[path].Since(before.Of[path])
		all.Add(grown)
		j.flows[path] = follow(j.flows[path], flowsOf(grown, passed), passed)
	}
	j.all = follow(j.all, flowsOf(all, passed), passed)
	j.crowded = j.free() < 0
	if !j.crowded {
		j.crowds = nil
	}
	return j.crowded
}

// free is how many more flows may share the paths before these are full.
func (j *judge) free() float64 {
	sum := 0.0
	for _, flows := range j.flows {
		sum += min(flows, fills)
	}
	return fills*float64(j.paths)/2 - min(sum, j.all)
}

// places are those for connections that are let go at once: as many as there is room for,
// or few where others fill the paths.
func (j *judge) places() int {
	if j.crowded {
		return few
	}
	return max(1, min(most, int(j.free())/max(1, j.paths-1)))
}

// guilty are the tenants that have more than few flows themselves, and suspected are
// those of which the next look will tell, because nothing is known of them yet.
func (j *judge) guilty(loads map[string]datapath.Load, paths int, passed time.Duration) (guilty, suspected []string) {
	before := j.crowds
	j.crowds = make(map[string]*crowd, len(loads))
	for name, load := range loads {
		one, last := &crowd{last: load}, before[name]
		j.crowds[name] = one
		if last == nil {
			suspected = append(suspected, name)
			continue
		}
		one.flows = follow(last.flows, flowsOf(load.Since(last.last), passed), passed)
		if one.flows > few*float64(paths) {
			guilty = append(guilty, name)
		}
	}
	return guilty, suspected
}

// follow rises at once, and falls slowly: what is under way comes in bursts.
func follow(before, now float64, passed time.Duration) float64 {
	if now >= before {
		return min(now, 4*fills*uplink.MaxPaths)
	}
	return before + (now-before)*min(1, passed.Seconds()/memory.Seconds())
}

// flowsOf is how many equal flows would have moved what was moved: the square of the sum
// to the sum of squares, in a slice of time. Of both directions the one counts in which
// more was moved, for that is the one that may be full.
func flowsOf(grown datapath.Load, passed time.Duration) float64 {
	direction := 0
	if grown.Moved[1] > grown.Moved[0] {
		direction = 1
	}
	moved, squares := grown.Moved[direction], grown.Squares[direction]
	if squares == 0 {
		return 0
	}
	slices := max(1, float64(passed)/float64(datapath.LoadSlice))
	return float64(moved) * float64(moved) / float64(squares) / slices
}
