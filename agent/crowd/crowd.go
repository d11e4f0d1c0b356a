// SPDX-License-Identifier: Apache-2.0

// Package crowd has connections wait for their further subflows while their tenant's own
// flows fill a node's paths. Where each path has many flows that all want to send, one
// more connection fills nothing that is free by having several of them, and all of them
// send less than a segment at a time.
//
// Connections that wait are let go a few at a time, as many as there is room for, and the
// next ones when it shows what those did to the paths. Nothing lets all of them go at
// once, neither an agent that restarts nor one that is away.
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
	"braid.dev/braid/internal/logonce"
)

const (
	// interval is how often the load is looked at. What is looked at are 8 places of a
	// map, and those of all endpoints while the paths are crowded.
	interval = 2 * datapath.LoadSlice
	// validity is how long what was said of a tenant holds: longer than an agent needs to
	// restart.
	validity = 30 * time.Second
	// quiet is for how long a crowd must be gone before connections are let go: it comes
	// back within that where they only paused.
	quiet = time.Second
	// settling is how long it takes until it shows how full those that were let go make
	// the paths.
	settling = time.Second
)

// Holder holds what the pods announce: see announcements.Holder.
type Holder interface {
	SetRoom(tenant string, left int, validity time.Duration) error
	RoomLeft(tenant string) (left int, bound bool, err error)
	FreeRoom(tenant string) error
}

// Options of a Crowd.
type Options struct {
	// Loads reads what flows moved so far, and Endpoints what those of each endpoint did,
	// by its number.
	Loads     func() (datapath.Loads, error)
	Endpoints func() ([]datapath.Load, error)
	// Holder is told for how many more connections of tenants there is room; those of
	// others are not bound.
	Holder Holder
	Log    logr.Logger
}

// Crowd is the node.Part that knows whose connections crowd the node's paths.
type Crowd struct {
	Rooms
	options Options
	judge   judge
	waiting map[string]*waiting
	failed  logonce.Error // the last error

	mutex   sync.Mutex
	wanted  bool
	began   bool
	tenants map[uint32]string // by the numbers of their endpoints
	unknown []string          // tenants of which this agent does not know what an earlier one said
	change  chan struct{}
}

// waiting is what is known of a tenant whose connections wait.
type waiting struct {
	filled time.Time // when they filled the paths last
	// suspected: they may not be among those that do, which the next look tells.
	suspected bool
	// adopted: this agent saw none of it yet. Only its own part holds back what may wait since
	// an earlier one. The programs go on as that left them: were they told, an agent that ends
	// right after its start would keep back everybody's subflows.
	adopted bool
	told    time.Time // when was said how many may go on
	places  int       // and how many these were
}

// New looks at nothing yet.
func New(options Options) *Crowd {
	return &Crowd{options: options, waiting: map[string]*waiting{}, change: make(chan struct{}, 1)}
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
	if !c.began && len(here) > 0 {
		c.began = true
		c.begin(here)
	}
	if c.wanted != wanted {
		c.wanted = wanted
		select {
		case c.change <- struct{}{}:
		default:
		}
	}
	return node.Report{}
}

// begin has nobody go on before this agent knows how full the paths are: connections may
// wait since an earlier one.
func (c *Crowd) begin(here map[string]bool) {
	for tenant := range here {
		c.Of(tenant).Set(0, time.Now().Add(validity))
		c.unknown = append(c.unknown, tenant)
	}
}

// Run looks at the load until the context ends.
func (c *Crowd) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		tick := ticker.C
		if !c.isWanted() && len(c.waiting) == 0 {
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
	c.adopt(now)
	passed := now.Sub(c.judge.at)
	loads, err := c.options.Loads()
	if err != nil {
		return err
	}
	var full, suspected []string
	if c.judge.isCrowded(loads, now) {
		each, err := c.options.Endpoints()
		if err != nil {
			return err
		}
		full, suspected = c.judge.guilty(c.byTenant(each), loads.Paths, passed)
	}
	c.note(full, suspected, now)
	var failed error
	for tenant, w := range c.waiting {
		failed = errors.Join(failed, c.tell(tenant, w, now))
	}
	return failed
}

// adopt takes those of which nothing is known as if they had filled the paths just now.
func (c *Crowd) adopt(now time.Time) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	for _, tenant := range c.unknown {
		c.waiting[tenant] = &waiting{filled: now, adopted: true}
	}
	c.unknown = nil
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

// note takes note of who fills the paths now.
func (c *Crowd) note(full, suspected []string, now time.Time) {
	for _, tenant := range slices.Concat(full, suspected) {
		if c.waiting[tenant] == nil {
			c.waiting[tenant] = &waiting{suspected: true}
		}
		c.waiting[tenant].see(now)
	}
	for _, tenant := range full {
		if w := c.waiting[tenant]; w.suspected {
			c.options.Log.V(1).Info("a tenant's connections fill the paths", "namespace", tenant, "flows", c.judge.all)
			w.suspected = false
		}
	}
}

// see takes note of that they fill the paths now.
func (w *waiting) see(now time.Time) {
	if w.adopted {
		w.adopted, w.told = false, time.Time{}
	}
	w.filled = now
}

// tell says how many connections of a tenant that fills the paths, or did of late, may get
// their further subflows.
func (c *Crowd) tell(tenant string, w *waiting, now time.Time) error {
	recent := now.Sub(w.told) < settling
	switch {
	case w.suspected && w.filled.Before(now):
		return c.free(tenant)
	case now.Sub(w.filled) < quiet && recent && w.places == 0:
		return nil
	case now.Sub(w.filled) < quiet:
		return c.set(tenant, w, 0, now)
	case recent:
		return nil
	case w.places == 0:
		return c.set(tenant, w, c.judge.places(), now)
	}
	taken, err := c.isTaken(tenant, w.places)
	if err != nil || taken {
		return errors.Join(err, c.set(tenant, w, c.judge.places(), now))
	}
	return c.free(tenant)
}

// free lets all go: nobody waits.
func (c *Crowd) free(tenant string) error {
	delete(c.waiting, tenant)
	c.Of(tenant).Free()
	return c.options.Holder.FreeRoom(tenant)
}

func (c *Crowd) set(tenant string, w *waiting, places int, now time.Time) error {
	w.told, w.places = now, places
	c.Of(tenant).Set(places, now.Add(validity))
	if _, bound, err := c.options.Holder.RoomLeft(tenant); w.adopted && !bound {
		return err
	}
	return c.options.Holder.SetRoom(tenant, places, validity)
}

// isTaken tells whether anybody took one of so many places.
func (c *Crowd) isTaken(tenant string, places int) (bool, error) {
	left, bound, err := c.options.Holder.RoomLeft(tenant)
	return c.Of(tenant).Left() < places || bound && left < places, err
}

// report logs an error once, however often it comes.
func (c *Crowd) report(err error) {
	c.failed.Log(c.options.Log, err, "failed to read the load of the paths: connections that wait get their further subflows one after the other")
}

// Remove has nothing to undo: what it said is in what others remove.
func (c *Crowd) Remove(context.Context) error { return nil }

// Close has nothing to let go of.
func (c *Crowd) Close() error { return nil }
