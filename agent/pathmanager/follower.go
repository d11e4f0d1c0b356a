// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/logonce"
	"braid.dev/braid/internal/mptcpnl"
)

const (
	// resync is how often the namespace and its sockets are looked at without any
	// cause, for what no event told.
	resync = 10 * time.Second
	// turnWait is how soon at the earliest a namespace asks again whether it is its turn.
	turnWait = 100 * time.Millisecond
	// retry is how soon events are subscribed to again after an error.
	retry = time.Second
)

// drift is whose turn it is to look for what no event told. A look goes through the sockets
// of all namespaces, so they look one at a time, and together for a part of the time: nobody
// waits for them, and many sockets of one pod would cost as often as the node has pods.
var drift turns

type turns struct {
	mu   sync.Mutex
	pace lookPace
}

// take looks, if it is the caller's turn. It never waits, and returns after how long to ask
// again where it is not.
func (t *turns) take(look func()) (wait time.Duration) {
	if !t.mu.TryLock() {
		return turnWait
	}
	defer t.mu.Unlock()
	begin := time.Now()
	if !t.pace.allows(begin) {
		return max(turnWait, t.pace.next.Sub(begin))
	}
	look()
	t.pace.spent(begin)
	return resync
}

// follower follows the connections of a namespace and has missing subflows
// opened.
type follower struct {
	namespace *Namespace
	tracker   *tracker
	announcer *announcer
	share     *share
	pace      lookPace
	young     *adolescents // nil where the agent hears of all connections at once
	rest      *rest
	onDemand  *onDemand
	// stale is true where events were lost since the last look.
	stale    bool
	log      logr.Logger
	reported logonce.Error // the last error
	stopped  chan struct{}
	done     sync.WaitGroup
}

// follow returns once events are received: no connection that begins from then on
// lacks what its peer announces, which the kernel tells but once.
func follow(n *Namespace, settings Settings) (*follower, error) {
	announcesIPv6, err := n.sysctls.announcesIPv6()
	if err != nil {
		return nil, err
	}
	f := &follower{namespace: n, share: n.newShare(), rest: n.newRest(settings), onDemand: n.newOnDemand(settings), log: n.options.Log, stopped: make(chan struct{})}
	f.tracker, f.announcer = newTracker(settings, announcesIPv6, f.share), newAnnouncer(n, settings, f.share, &f.pace)
	subscription, err := f.subscribe()
	if err != nil {
		return nil, err
	}
	f.done.Go(func() { f.run(subscription) })
	return f, nil
}

func (f *follower) stop() {
	close(f.stopped)
	f.done.Wait()
	f.share.give(f.share.taken)
	f.tracker.count(-f.tracker.delaying)
	f.share.crowd.Wait(-f.tracker.held.Len())
	f.share.crowd.Rescued(f.tracker.rescued)
}

func (f *follower) run(subscription *mptcpnl.Subscription) {
	defer f.onDemand.unwatch()
	for {
		err := f.followEvents(subscription)
		if err == nil || errors.Is(err, errAtRest) && !f.doze() {
			f.rest.unwatch()
			return
		}
		subscription = nil
		if errors.Is(err, errAtRest) {
			continue
		}
		f.log.Error(err, "failed to follow the pod's connections; trying again", "after", retry)
		select {
		case <-f.stopped:
			return
		case <-time.After(retry):
		}
	}
}

// received is what one look for events brought.
type received struct {
	events []mptcpnl.Event
	err    error
}

// followEvents follows those of a subscription, or of a new one where there is none.
// It returns nil when the follower is stopped.
func (f *follower) followEvents(subscription *mptcpnl.Subscription) (err error) {
	if subscription == nil {
		if subscription, err = f.subscribe(); err != nil {
			return err
		}
	}
	defer f.letGo()
	f.rest.unwatch()
	f.namespace.hear(true)
	defer func() {
		if !errors.Is(err, errAtRest) || f.rest.opens { // while it rests, listeners are told of
			f.namespace.hear(false)
		}
	}()
	events := make(chan received)
	var receiver sync.WaitGroup
	receiver.Go(func() { receive(subscription, events, f.stopped) })
	// What happened before the subscription is found by looking.
	err = f.look()
	f.tracker.seen = map[uint32]time.Time{}
	if err == nil {
		f.rest.served = f.onDemand.found.tokens
		f.report(f.beginOnDemand())
		err = f.loop(events)
	}
	err = errors.Join(err, subscription.Close())
	go func() { // the receiver may be about to send what nobody wants any more
		for range events {
		}
	}()
	receiver.Wait()
	return err
}

func receive(subscription *mptcpnl.Subscription, events chan<- received, stopped <-chan struct{}) {
	defer close(events)
	for {
		list, err := subscription.Receive()
		if errors.Is(err, os.ErrClosed) {
			return
		}
		select {
		case events <- received{list, err}:
		case <-stopped:
			return
		}
		if err != nil && !errors.Is(err, mptcpnl.ErrEventsLost) {
			return
		}
	}
}

func (f *follower) loop(events <-chan received) error {
	compare := time.NewTimer(resync)
	defer compare.Stop()
	rests := f.rest.look()
	for {
		wait, cancel := f.wait()
		select {
		case <-f.stopped:
			cancel()
			return nil
		case got := <-events:
			if err := f.handle(got); err != nil {
				cancel()
				return err
			}
		case <-f.young.hasGrown():
			f.handleGrown()
		case <-compare.C:
			compare.Reset(f.resyncInTurn())
		case <-rests:
			if f.mayRest(time.Now()) {
				cancel()
				return errAtRest
			}
			rests = f.rest.look()
		case <-f.onDemand.arrived:
			f.onDemand.watchServed()
		case <-f.onDemand.served:
			f.report(f.startAnnouncing(time.Now()))
		case <-f.onDemand.looks:
			f.lookAtArrived()
		case <-wait:
		}
		cancel()
		f.report(errors.Join(f.lookAgain(), f.openMissing(), f.announcer.announce(time.Now())))
	}
}

// report logs an error once, however often what is tried again fails for it.
func (f *follower) report(err error) {
	f.reported.Log(f.log, err, "failed to open subflows; trying again")
}

// wait returns a channel that is ready when something is due.
func (f *follower) wait() (<-chan time.Time, func()) {
	next, ok := f.tracker.next()
	if announce, more := f.announcer.next(); more && (!ok || announce.Before(next)) {
		next, ok = announce, true
	}
	if f.stale && (!ok || f.pace.next.Before(next)) {
		next, ok = f.pace.next, true
	}
	if !ok {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(next))
	return timer.C, func() { timer.Stop() }
}

func (f *follower) handle(got received) error {
	if errors.Is(got.err, mptcpnl.ErrEventsLost) {
		f.share.counts.EventsLost.Add(1)
		f.stale = true
		return nil
	}
	if got.err != nil {
		return got.err
	}
	now := time.Now()
	for _, event := range got.events {
		if f.isYoung(event) {
			continue
		}
		f.tracker.handle(event, now)
		f.announcer.handle(event, now)
		if listener, ok := event.(mptcpnl.ListenerEvent); ok && listener.Kind == mptcpnl.ListenerCreated {
			f.namespace.hear(true)
			if err := f.namespace.reapply(); err != nil {
				f.log.Error(err, "failed to announce the addresses of a pod that listens")
			}
		}
	}
	return nil
}

// lookAgain finds what events did not tell because they were lost. A pod can make them
// be lost again and again, so it waits until a look is due.
func (f *follower) lookAgain() error {
	if !f.stale || !f.pace.allows(time.Now()) {
		return nil
	}
	f.namespace.hear(true)
	return f.look()
}

// look finds the connections and subflows that there are.
func (f *follower) look() error {
	begin := time.Now()
	defer f.pace.spent(begin)
	f.stale = false
	tracked, announced, served := f.tracker.look(begin), f.announcer.look(), f.onDemand.look()
	if err := f.namespace.diagnostics.EachSubflow(func(s *mptcpnl.Subflow) bool {
		tracked.subflow(s)
		announced.subflow(s)
		served.subflow(s)
		return true
	}); err != nil {
		return err
	}
	if err := f.namespace.diagnostics.EachConnection(func(c *mptcpnl.Connection) bool {
		tracked.connection(c)
		announced.connection(c)
		return true
	}); err != nil {
		return err
	}
	f.onDemand.found = served
	tracked.end()
	announced.end(time.Now())
	return nil
}

// resyncInTurn looks for drift where it is this namespace's turn, and returns after
// how long to do so again. It never waits: events come meanwhile.
func (f *follower) resyncInTurn() time.Duration {
	return drift.take(func() {
		if err := errors.Join(f.look(), f.compareServed(time.Now()), f.namespace.reapply()); err != nil {
			f.log.Error(err, "failed to compare the pod's MPTCP settings with the wanted ones")
		}
	})
}

// openMissing has the subflows opened that are missing and due. Before anything
// is tried again it looks what is under way, so as not to open too many.
func (f *follower) openMissing() error {
	now := time.Now()
	var failed error
	if f.tracker.letGoHeld(now) {
		failed = f.rescue(now)
	}
	failed = errors.Join(failed, f.lookAtWaiting(now))
	tried := func(c *connection) bool { return c.attempts > 0 }
	if due := f.tracker.due(now); slices.ContainsFunc(due, tried) {
		if !f.pace.allows(now) {
			f.tracker.postpone(slices.DeleteFunc(due, func(c *connection) bool { return !tried(c) }), f.pace.next)
		} else if err := f.look(); err != nil {
			return errors.Join(failed, err)
		}
	}
	return errors.Join(failed, f.create(f.tracker.due(now), now), f.nudge(f.tracker.due(now), now))
}

// lookAtWaiting looks how much the connections have moved that wait for their
// further subflows.
func (f *follower) lookAtWaiting(now time.Time) error {
	var failed error
	for _, c := range f.tracker.due(now) {
		if !c.delayed.waits {
			continue
		}
		if f.tracker.isOldEnough(c, now) {
			f.tracker.looked(c, c.delayed.bytes, now)
			continue
		}
		bytes, there, err := f.moved(c)
		failed = errors.Join(failed, err)
		if !there && err == nil {
			f.tracker.forget(c.token) // it closed while it was young, or the next look finds it
			continue
		}
		f.tracker.looked(c, bytes, now)
	}
	return failed
}

// moved is what the connection's first subflow, its only one, has moved in both
// directions, and false where that one is gone.
func (f *follower) moved(c *connection) (bytes uint64, there bool, err error) {
	if f.tracker.settings.OpenAfter.Bytes == 0 {
		return 0, true, nil
	}
	first, there, err := f.namespace.diagnostics.Subflow(c.local, c.remote)
	return first.TCP.SentBytes + first.TCP.ReceivedBytes, there, err
}

// create opens subflows of the connections that the agent is in charge of.
func (f *follower) create(due []*connection, now time.Time) error {
	var failed error
	for _, c := range due {
		if c.byKernel || c.delayed.waits || !f.tracker.mayJoin(c, now) {
			continue
		}
		failed = errors.Join(failed, f.leaveFastOpen(c), f.locate(c))
		lacking := f.tracker.lacking(c, true)
		f.tracker.attempt(c, now)
		for _, p := range lacking {
			if c.byKernel || f.tracker.connections[c.token] != c {
				break
			}
			if err := f.createOne(c, p, now); err != nil {
				failed = errors.Join(failed, err)
				break
			}
		}
	}
	return failed
}

// locate finds where the node's translation leads the connection, as that of a
// Service's address does.
func (f *follower) locate(c *connection) error {
	if c.backend.IsValid() || f.namespace.options.Destination == nil {
		return nil
	}
	backend, found, err := f.namespace.options.Destination(c.local, c.remote)
	if err != nil || !found {
		return err
	}
	c.backend = backend
	f.tracker.refresh(c)
	return nil
}

func (f *follower) createOne(c *connection, p pair, now time.Time) error {
	local := mptcpnl.Endpoint{ID: p.id, Address: p.local}
	remote := mptcpnl.Endpoint{ID: p.remoteID, Address: p.remote.Addr(), Port: p.remote.Port()}
	err := f.namespace.client.CreateSubflowTo(c.token, local, remote)
	switch {
	case err == nil, errors.Is(err, unix.ENOTCONN): // its handshake ends just now
		return nil
	case strings.Contains(err.Error(), "userspace PM not selected"):
		c.attempts = 0
		f.tracker.leaveToKernel(c, now)
		return nil
	case strings.Contains(err.Error(), "invalid token"):
		f.tracker.forget(c.token)
		return nil
	case strings.Contains(err.Error(), "families mismatch"): // an IPv4 socket has no IPv6 subflows
		f.tracker.refuse(c, p)
		return nil
	}
	return err
}

// nudge makes the kernel open subflows of the connections that it is in charge
// of, one of each at a time.
func (f *follower) nudge(due []*connection, now time.Time) error {
	candidates := slices.DeleteFunc(due, func(c *connection) bool { return !c.byKernel || c.delayed.waits })
	if len(candidates) == 0 {
		return nil
	}
	without, err := f.mayNotNudge()
	if without || err != nil {
		f.tracker.postpone(candidates, now.Add(announceGrace))
		return err
	}
	var failed error
	missing := map[bool]int{} // by whether it is IPv4
	for _, c := range candidates {
		if !f.tracker.mayJoin(c, now) {
			continue
		}
		if is4 := c.remote.Addr().Is4(); f.tracker.mayNudge(is4) {
			missing[is4] = max(missing[is4], f.tracker.missing(c, true))
		}
		f.tracker.attempt(c, now)
	}
	for is4, count := range missing {
		endpoint := anyIPv6
		if is4 {
			endpoint = anyIPv4
		}
		for range count {
			failed = errors.Join(failed, f.namespace.nudge(endpoint))
		}
	}
	if failed != nil {
		return fmt.Errorf("making the kernel open subflows: %w", failed)
	}
	return nil
}
