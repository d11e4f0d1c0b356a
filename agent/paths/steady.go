// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"fmt"
	"slices"
	"time"
)

// A NIC that keeps losing its carrier takes packets with it each time, and connections wait
// for these: one that went down so often within flapTime is left out until it has been up for
// steadyFor.
const (
	flaps     = 4
	flapTime  = 6 * time.Second
	steadyFor = 3 * time.Second
)

// steadiness remembers, by path, when its NIC went down.
type steadiness map[string]*carrierHistory

type carrierHistory struct {
	up    bool
	since time.Time
	downs []time.Time // within flapTime
	held  bool
}

// hold makes paths unusable whose NICs come and go, and says in the resolution after what time
// that may be over.
func (s steadiness) hold(result *Resolution, now time.Time) {
	there := map[string]bool{}
	for i := range result.Paths {
		path := &result.Paths[i]
		there[path.Name] = true
		wait := s.note(path.Name, path.Index != 0 && path.Up, now)
		if wait == 0 || !path.Usable {
			continue
		}
		path.Usable = false
		path.complain(fmt.Sprintf("went down %d times within %v: it is used again once it has been up for %v", flaps, flapTime, steadyFor))
		if result.Again == 0 || wait < result.Again {
			result.Again = wait
		}
	}
	for name := range s {
		if !there[name] {
			delete(s, name)
		}
	}
}

// note returns how long a NIC that is up must stay so before it is used.
func (s steadiness) note(path string, up bool, now time.Time) time.Duration {
	of := s[path]
	if of == nil {
		of = &carrierHistory{up: up, since: now}
		s[path] = of
	}
	if up != of.up {
		of.up, of.since = up, now
		if !up {
			of.downs = append(slices.DeleteFunc(of.downs, func(at time.Time) bool { return now.Sub(at) > flapTime }), now)
			of.held = of.held || len(of.downs) >= flaps
		}
	}
	wait := steadyFor - now.Sub(of.since)
	if of.held && up && wait <= 0 {
		of.held, of.downs = false, nil
	}
	if !of.held || !up {
		return 0
	}
	return wait
}
