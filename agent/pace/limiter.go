// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/pace"
)

// The values of the binary form (chain.h, subflow.h) that are used here.
const (
	fromEndpoint = 0

	mechanismAuto = 0
	mechanismPace = 1

	scopeSubflow    = 0
	scopeConnection = 1

	endedByBoth  = 1<<0 | 1<<1
	endedByReset = 1 << 2
)

// How often subflows are looked at.
const (
	sharing  = 100 * time.Millisecond // while rates are shared
	watching = time.Second            // for subflows that begin to match a rule
	settling = 2 * time.Second        // after a change it is looked at as often as for sharing

	// restful is how many times as long as a look took the next one waits: with many
	// thousands of subflows rates are shared less often rather than at any cost.
	restful = 10
)

// limiter shares rates among subflows. It belongs to the Pacer's lock.
type limiter struct {
	objects *objects
	keys    []pace.PaceSubflowKey
	records []pace.PaceSubflow
	last    time.Time
	groups  map[groupKey]*group
	flows   map[pace.PaceSubflowKey]*usage
	written map[pace.PaceSubflowKey]uint64
}

// groupKey names what shares one rate. A connection whose token is not known is
// taken for one of its subflow alone.
type groupKey struct {
	endpoint, limit, token uint32
	alone                  pace.PaceSubflowKey
}

type group struct {
	account
	rate    float64
	used    float64 // bytes since the last time
	members []pace.PaceSubflowKey
}

// usage is what a subflow has sent.
type usage struct {
	member
	bytes   uint64 // at the last look
	begun   bool
	seen    bool
	waiting int // looks since it should have another pace
}

// batch is how many records are read at once.
const batch = 4096

func newLimiter(o *objects) (*limiter, error) {
	l := &limiter{
		objects: o,
		keys:    make([]pace.PaceSubflowKey, batch),
		records: make([]pace.PaceSubflow, batch),
		groups:  map[groupKey]*group{},
		flows:   map[pace.PaceSubflowKey]*usage{},
		written: map[pace.PaceSubflowKey]uint64{},
	}
	return l, l.adopt()
}

// adopt takes over the shares that an earlier agent gave.
func (l *limiter) adopt() error {
	var key pace.PaceSubflowKey
	var rate uint64
	entries := l.objects.paces.Iterate()
	for entries.Next(&key, &rate) {
		l.written[key] = rate
	}
	if err := entries.Err(); err != nil {
		return fmt.Errorf("reading an earlier agent's shares: %w", err)
	}
	return nil
}

// Run shares rates among the subflows of a connection or an endpoint until the
// context ends, and watches for connections older than the agent that begin to
// match. It sleeps while there are no endpoints.
func (p *Pacer) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changed:
		case <-timer.C:
		}
		began := time.Now()
		if err := p.look(); err != nil {
			p.options.Log.Error(err, "failed to divide rates among subflows; they keep the rates that they have")
		}
		if next := p.next(); next > 0 {
			timer.Reset(max(next, restful*time.Since(began)))
		}
	}
}

// next is when to look again; 0 for not before a change.
func (p *Pacer) next() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects == nil || len(p.endpoints) == 0 {
		return 0
	}
	if time.Since(p.applied) < settling {
		return sharing
	}
	for _, endpoint := range p.endpoints {
		if endpoint.SharedLimits {
			return sharing
		}
	}
	return watching
}

// look reads what subflows have sent and gives them new shares.
func (p *Pacer) look() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.objects == nil || p.limiter == nil {
		return nil
	}
	paths := make(map[uint32]string, len(p.endpoints))
	for _, endpoint := range p.endpoints {
		paths[endpoint.Number] = endpoint.Path
	}
	late, err := p.limiter.look(time.Now(), paths)
	for endpoint := range late {
		err = errors.Join(err, p.sweep(paths[endpoint]))
	}
	return err
}

// look returns the endpoints with sockets that do not follow by themselves: those
// that nothing calls each round trip.
func (l *limiter) look(now time.Time, endpoints map[uint32]string) (late map[uint32]bool, err error) {
	seconds := now.Sub(l.last).Seconds()
	l.last = now
	for _, group := range l.groups {
		group.used, group.members = 0, group.members[:0]
	}
	late = map[uint32]bool{}
	err = l.each(func(key pace.PaceSubflowKey, record *pace.PaceSubflow) {
		if _, ours := endpoints[key.Endpoint]; ours && mayPace(record) && !hasEnded(record) {
			l.note(key, record, seconds, late)
		}
	})
	if err != nil {
		return nil, err
	}
	// First what is given back: together there may be more than the map has places for.
	return late, errors.Join(l.forget(), l.share(seconds))
}

func mayPace(record *pace.PaceSubflow) bool {
	limit := &record.Limit[fromEndpoint]
	return limit.Rate > 0 && (limit.Mechanism == mechanismAuto || limit.Mechanism == mechanismPace)
}

func hasEnded(record *pace.PaceSubflow) bool {
	return record.Ended&endedByReset != 0 || record.Ended&endedByBoth == endedByBoth
}

// each reads all records.
func (l *limiter) each(f func(pace.PaceSubflowKey, *pace.PaceSubflow)) error {
	var cursor ebpf.MapBatchCursor
	for {
		n, err := l.objects.subflows.BatchLookup(&cursor, l.keys, l.records, nil)
		for i := range n {
			f(l.keys[i], &l.records[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the records of subflows: %w", err)
		}
	}
}

// note takes down what a subflow has sent.
func (l *limiter) note(key pace.PaceSubflowKey, record *pace.PaceSubflow, seconds float64, late map[uint32]bool) {
	flow := l.flows[key]
	if flow == nil {
		flow = &usage{}
		l.flows[key] = flow
	}
	flow.pace = float64(l.written[key])
	sent := flow.add(record.Traffic[fromEndpoint].Bytes, seconds)
	limit := &record.Limit[fromEndpoint]
	wanted := limit.Rate
	// Records that are not paced have no socket: whoever forges segments makes
	// thousands of them.
	if limit.Scope != scopeSubflow && record.Paced != 0 {
		group := l.group(key, record)
		group.members = append(group.members, key)
		group.used += sent
		wanted = l.written[key]
	}
	if flow.lags(wanted, record.Paced, sent) {
		late[key.Endpoint] = true
	}
}

// add returns the bytes that were sent since the last look.
func (u *usage) add(bytes uint64, seconds float64) (sent float64) {
	u.seen = true
	if u.begun {
		if bytes < u.bytes { // the record was made anew
			u.bytes = 0
		}
		sent = float64(bytes - u.bytes)
		u.smooth(sent/seconds, seconds)
	}
	u.bytes, u.begun = bytes, true
	return sent
}

// patience is the number of looks for which a socket may lag behind while it
// sends, before it is looked for, and then at which it is looked for again.
const patience = 3

func (u *usage) lags(wanted, paced uint64, sent float64) bool {
	if wanted == 0 || paced == wanted || sent == 0 {
		u.waiting = 0
		return false
	}
	u.waiting++
	return u.waiting%patience == 0
}

func (l *limiter) group(key pace.PaceSubflowKey, record *pace.PaceSubflow) *group {
	limit := &record.Limit[fromEndpoint]
	name := groupKey{endpoint: key.Endpoint, limit: limit.Id}
	if limit.Scope == scopeConnection {
		name.token = record.Token
		if record.Token == 0 {
			name.alone = key
		}
	}
	found := l.groups[name]
	if found == nil {
		found = &group{}
		l.groups[name] = found
	}
	found.rate = float64(limit.Rate)
	return found
}

// share gives the members of all groups their paces.
func (l *limiter) share(seconds float64) error {
	failed, failures := error(nil), 0
	for _, group := range l.groups {
		members := make([]member, len(group.members))
		for i, key := range group.members {
			members[i] = l.flows[key].member
		}
		for i, share := range group.share(group.rate, group.used, seconds, members) {
			if err := l.write(group.members[i], uint64(max(share, 1))); err != nil {
				failed, failures = err, failures+1
			}
		}
	}
	if failures > 1 {
		return fmt.Errorf("%d subflows have no share of their rate, the last one because of: %w", failures, failed)
	}
	return failed
}

// smallest is the part of a pace by which it must change to be written.
const smallest = 0.01

func (l *limiter) write(key pace.PaceSubflowKey, rate uint64) error {
	before := float64(l.written[key])
	if math.Abs(float64(rate)-before) <= smallest*before {
		return nil
	}
	if err := l.objects.paces.Put(key, rate); err != nil {
		return fmt.Errorf("writing the rate of a subflow: %w", err)
	}
	l.written[key] = rate
	return nil
}

// forget drops what is known of subflows that have no share any more.
func (l *limiter) forget() error {
	for key, flow := range l.flows {
		if !flow.seen {
			delete(l.flows, key)
		}
		flow.seen = false
	}
	shared := map[pace.PaceSubflowKey]bool{}
	for name, group := range l.groups {
		if len(group.members) == 0 {
			delete(l.groups, name)
		}
		for _, key := range group.members {
			shared[key] = true
		}
	}
	for key := range l.written {
		if shared[key] {
			continue
		}
		if err := l.objects.paces.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("taking back a share: %w", err)
		}
		delete(l.written, key)
	}
	return nil
}
