// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"braid.dev/braid/bpf/guard"
)

const (
	// interval is how often shares are given anew, while there are any.
	interval = 100 * time.Millisecond
	// shortest is how much time must be between two looks to tell rates from them.
	shortest = interval / 4
	// memory is how long a rate counts, in seconds: senders that lose packets pause.
	memory = 0.3
	// appetite is how long one is taken for hungry after it was.
	appetite = time.Second
	// hungry is the part of its share that one must use to be taken for one that
	// wants more.
	hungry = 0.75
	// growth is what one that is not hungry may use more than it did.
	growth = 1.25
	// Parts of a path's capacity: filling is what is divided into shares, shaping
	// what its queue lets go, and crowded from where on shares count, with what a
	// link spends on each frame, a 64th at least. So crowded is hardly less than what the
	// queue lets go, shaping more than the shares, and all less than the whole: what waits
	// shall wait in the path's own queue, and what the meter takes to be waiting there shall
	// be there.
	filling, shaping, crowded = 0.96, 0.965, 0.98
	// smallest is the part by which a share must change to be written.
	smallest = 0.01
)

// sharing gives endpoints their shares. It belongs to the guard's lock.
type sharing struct {
	last   time.Time
	others [slots]sender  // traffic of nobody that is guarded
	rest   [slots]float64 // of shared paths, for all that are guarded
	by     map[uint32]*[slots]sender
}

// sender is one that sends on a path.
type sender struct {
	used    float64 // bits a second
	sent    uint64  // bytes at the last look
	dropped uint64
	hungry  time.Time // until then
	share   float64   // that it has
}

func newSharing() *sharing { return &sharing{by: map[uint32]*[slots]sender{}} }

func (s *sharing) forget(row uint32) { delete(s.by, row) }

// note takes down what a sender did in so many seconds.
func (s *sender) note(sent, dropped uint64, seconds float64, now time.Time) {
	if sent < s.sent || dropped < s.dropped { // the row was emptied
		s.sent, s.dropped = 0, 0
	}
	rate := float64(sent-s.sent) * 8 / seconds
	s.used += (1 - math.Exp(-seconds/memory)) * (rate - s.used)
	if dropped > s.dropped || s.share > 0 && max(rate, s.used) >= hungry*s.share {
		s.hungry = now.Add(appetite)
	}
	s.sent, s.dropped = sent, dropped
}

func (s *sender) wants(now time.Time) float64 {
	if now.Before(s.hungry) {
		return math.Inf(1)
	}
	return s.used * growth
}

// Run gives shares anew, and guards new pods, until the context ends.
func (g *Guard) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.giveShares(ctx) })
	group.Go(func() error { return g.followInterfaces(ctx) })
	return group.Wait()
}

// giveShares sleeps while none are needed.
func (g *Guard) giveShares(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		if !g.share() {
			select {
			case <-ctx.Done():
				return nil
			case <-g.changed:
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// share returns false while there is nothing to share.
func (g *Guard) share() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.loaded.Is() || !g.rows.shares() {
		return false
	}
	if err := g.tick(time.Now()); err != nil {
		g.options.Log.Error(err, "failed to divide a path's capacity among tenants; they keep the rates that they have")
	}
	return true
}

// shares is true while somebody's share depends on what others do.
func (b *rows) shares() bool {
	if slices.ContainsFunc(b.paths, func(path pathRow) bool { return path.capacity > 0 }) {
		return true
	}
	members := map[string]int{}
	for _, endpoint := range b.endpoints {
		members[endpoint.Namespace]++
	}
	for namespace, tenant := range b.tenants {
		if members[namespace] > 1 && slices.Max(tenant.ceilings[:]) > 0 {
			return true
		}
	}
	return false
}

// tick reads what was sent since the last time and gives shares by it.
func (g *Guard) tick(now time.Time) error {
	s := g.sharing
	if err := s.look(now, g.loaded.Value, g.rows); err != nil {
		return fmt.Errorf("reading what was sent: %w", err)
	}
	groups := g.rows.groups()
	var failed error
	for _, path := range g.rows.paths {
		rest := s.sharePath(now, path, groups)
		if path.capacity > 0 && math.Abs(rest-s.rest[path.number]) > smallest*path.capacity {
			failed = errors.Join(failed, g.setShared(path.number, rest))
			s.rest[path.number] = rest
		}
	}
	if err := s.write(g.loaded.Value, g.rows); err != nil {
		failed = errors.Join(failed, fmt.Errorf("writing shares: %w", err))
	}
	return failed
}

// look reads the counters of all.
func (s *sharing) look(now time.Time, o *objects, b *rows) error {
	for _, endpoint := range b.endpoints {
		if s.by[endpoint.Number] == nil {
			s.by[endpoint.Number] = &[slots]sender{}
		}
	}
	seconds, begun := now.Sub(s.last).Seconds(), !s.last.IsZero()
	if now.Sub(s.last) < shortest {
		return nil
	}
	var guarded [slots]uint64
	for _, endpoint := range b.endpoints {
		var usage guard.MeterUsage
		if err := o.maps().Usages.Lookup(endpoint.Number, &usage); err != nil {
			return err
		}
		senders := s.by[endpoint.Number]
		for slot := range senders {
			guarded[slot] += usage.Sent[slot]
			if !begun { // of an earlier agent
				senders[slot].sent, senders[slot].dropped = usage.Sent[slot], usage.Dropped[slot]
				continue
			}
			senders[slot].note(usage.Sent[slot], usage.Dropped[slot], seconds, now)
		}
	}
	s.last = now
	return s.lookAtOthers(o, b, guarded, seconds, now)
}

// lookAtOthers takes all that was sent on a path and by nobody that is guarded for
// one sender.
func (s *sharing) lookAtOthers(o *objects, b *rows, guarded [slots]uint64, seconds float64, now time.Time) error {
	for _, path := range b.paths {
		var usage guard.MeterPathUsage
		if err := o.maps().PathUsages.Lookup(path.number, &usage); err != nil {
			return err
		}
		before := &s.others[path.number]
		sent := usage.Sent - min(usage.Sent, guarded[path.number])
		if sent < before.sent {
			before.sent = sent
		}
		before.note(sent, 0, seconds, now)
	}
	return nil
}

// sharePath divides a path's capacity, or where that is not shared the ceilings of
// the tenants, one by one. It returns what others leave of a shared path.
func (s *sharing) sharePath(now time.Time, path pathRow, groups [][]*endpointRow) (rest float64) {
	demands := make([]group, 0, len(groups)+1)
	for _, members := range groups {
		demands = append(demands, s.demand(now, path, members[0].tenant, members))
	}
	if path.capacity > 0 {
		others := demand{wants: s.others[path.number].used * growth, most: math.Inf(1), weight: 1}
		keep(filling*path.capacity, demands)
		rates := allocate(filling*path.capacity, append(demands, group{weight: 1, most: math.Inf(1), members: []demand{others}}))
		for i, members := range groups {
			s.give(path.number, members, rates[i])
		}
		return shaping*path.capacity - min(others.wants, rates[len(groups)][0])
	}
	for i, members := range groups {
		rates := make([]float64, len(members))
		if ceiling := demands[i].most; len(members) > 1 && !math.IsInf(ceiling, 1) {
			keep(ceiling, demands[i:i+1])
			rates = allocate(ceiling, demands[i:i+1])[0]
		}
		s.give(path.number, members, rates)
	}
	return 0
}

// demand is what a tenant and its endpoints ask for on a path.
func (s *sharing) demand(now time.Time, path pathRow, tenant *tenantRow, members []*endpointRow) group {
	g := group{weight: tenant.weight(path.number), most: orInfinite(tenant.ceilings[path.number])}
	for _, member := range members {
		g.members = append(g.members, demand{
			wants: s.by[member.Number][path.number].wants(now), most: orInfinite(member.maxRate), weight: 1,
		})
	}
	return g
}

func orInfinite(rate float64) float64 {
	if rate <= 0 {
		return math.Inf(1)
	}
	return rate
}

func (s *sharing) give(slot uint32, members []*endpointRow, rates []float64) {
	for i, member := range members {
		before := &s.by[member.Number][slot].share
		if math.Abs(*before-rates[i]) > smallest**before || rates[i] == 0 {
			*before = rates[i]
		}
	}
}

// write writes the shares that changed.
func (s *sharing) write(o *objects, b *rows) error {
	for _, endpoint := range b.endpoints {
		var allowance guard.MeterAllowance
		if err := o.maps().Allowances.Lookup(endpoint.Number, &allowance); err != nil {
			return err
		}
		before := allowance
		for slot := range slots {
			allowance.Share[slot] = price(s.by[endpoint.Number][slot].share)
		}
		if allowance == before {
			continue
		}
		if err := o.maps().Allowances.Put(endpoint.Number, allowance); err != nil {
			return err
		}
	}
	return nil
}
