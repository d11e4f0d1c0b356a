// SPDX-License-Identifier: Apache-2.0

// Package crowd has connections wait for their further subflows while their tenant's own
// flows fill a node's paths. Where each path has many flows that all want to send, one
// more connection fills nothing that is free by having several of them, and all of them
// send less than a segment at a time.
package crowd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/node"
)

const (
	// interval is how often the load is looked at. What is looked at are 8 places of a
	// map, and those of all endpoints while the paths are crowded.
	interval = 2 * datapath.LoadSlice
	// validity is how long a verdict holds. An agent that is late, or gone, holds nobody.
	validity = 3 * time.Second
	// openings is how many connections of a tenant may get their further subflows from one
	// look to the next for some time after a crowd: nobody knows yet how full these make
	// the paths.
	openings = 16
	recovery = 10 * time.Second
)

// Options of a Crowd.
type Options struct {
	// Loads reads what flows moved so far, and Endpoints what those of each endpoint did,
	// by its number.
	Loads     func() (datapath.Loads, error)
	Endpoints func() ([]datapath.Load, error)
	// Hold tells who holds the announcements of pods for how many more connections of
	// some tenants there is room; those of others are not bound.
	Hold func(left map[string]int, validity time.Duration) error
	Log  logr.Logger
}

// Crowd is the node.Part that knows whose connections crowd the node's paths.
type Crowd struct {
	Rooms
	options Options
	judge   judge
	full    map[string]time.Time // tenants, and when they filled the paths last
	failed  string               // the last error

	mutex   sync.Mutex
	wanted  bool
	tenants map[uint32]string // by the numbers of their endpoints
	change  chan struct{}
}

// New looks at nothing yet.
func New(options Options) *Crowd {
	return &Crowd{options: options, full: map[string]time.Time{}, change: make(chan struct{}, 1)}
}

// Apply has the load looked at while there are endpoints whose connections may wait.
func (c *Crowd) Apply(_ context.Context, model *node.Model) node.Report {
	wanted, tenants, here := false, map[uint32]string{}, map[string]bool{}
	for i := range model.Endpoints {
		endpoint := &model.Endpoints[i]
		s := &endpoint.Subflows
		wanted = wanted || s.Count > 1 && s.OpenAfterBytes+s.OpenAfterMillis+s.AnnounceAfterBytes+s.AnnounceAfterMillis > 0
		tenants[endpoint.Number], here[endpoint.Namespace] = endpoint.Namespace, true
	}
	c.keep(here)
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.tenants = tenants
	if c.wanted != wanted {
		c.wanted = wanted
		select {
		case c.change <- struct{}{}:
		default:
		}
	}
	return node.Report{}
}

// Run looks at the load until the context ends.
func (c *Crowd) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		tick := ticker.C
		if !c.isWanted() {
			tick = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.change:
		case <-tick:
			c.report(c.look(time.Now()))
		}
	}
}

func (c *Crowd) isWanted() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.wanted
}

func (c *Crowd) look(now time.Time) error {
	passed := now.Sub(c.judge.at)
	loads, err := c.options.Loads()
	if err != nil {
		return err
	}
	if !c.judge.isCrowded(loads, now) {
		c.judge.crowds = nil
		return c.tell(nil, now)
	}
	each, err := c.options.Endpoints()
	if err != nil {
		return errors.Join(err, c.tell(nil, now))
	}
	return c.tell(c.judge.guilty(c.byTenant(each), loads.Paths, passed), now)
}

// byTenant adds up what the endpoints of each tenant moved.
func (c *Crowd) byTenant(each []datapath.Load) map[string]datapath.Load {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	sums := map[string]datapath.Load{}
	for number, tenant := range c.tenants {
		if int(number) < len(each) {
			sum := sums[tenant]
			sum.Add(each[number])
			sums[tenant] = sum
		}
	}
	return sums
}

// tell says who fills the paths, and how many connections of those that did of late may
// get their further subflows.
func (c *Crowd) tell(full []string, now time.Time) error {
	for _, tenant := range full {
		if _, known := c.full[tenant]; !known {
			c.options.Log.V(1).Info("a tenant's connections fill the paths", "namespace", tenant, "flows", c.judge.all)
		}
		c.full[tenant] = now
	}
	left := map[string]int{}
	for tenant, at := range c.full {
		if now.Sub(at) > recovery {
			delete(c.full, tenant)
			continue
		}
		left[tenant] = openings
		if slices.Contains(full, tenant) {
			left[tenant] = 0
		}
		c.Of(tenant).Set(left[tenant], now.Add(validity))
	}
	if len(left) == 0 {
		return nil
	}
	return c.options.Hold(left, validity)
}

// report logs an error once, however often it comes.
func (c *Crowd) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != c.failed && err != nil {
		c.options.Log.Error(err, "failed to look how full the paths are: connections get their further subflows")
	}
	c.failed = text
}

// Remove has nothing to undo: what it said is valid for a moment.
func (c *Crowd) Remove(context.Context) error { return nil }

// Close has nothing to let go of.
func (c *Crowd) Close() error { return nil }
