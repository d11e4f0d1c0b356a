// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/announcements"
)

const (
	// restAfter is how long a pod has had no connection that lasts before nobody listens to
	// its events any more, at first; restAgain, once it has had one meanwhile. restJoined is
	// after peers have joined connections that had not lasted for this end.
	restAfter  = time.Second
	restAgain  = 10 * time.Second
	restJoined = 5 * time.Minute
)

// errAtRest ends the following of a pod that only has connections which stay short. The
// kernel makes some six events of each connection where somebody listens, and looks for each
// of them at all who listen on the node: more than all else that Braid costs a short one.
var errAtRest = errors.New("no connection of the pod lasts")

// Watcher tells of pods to whose events nobody listens: it is announcements.Holder.
type Watcher interface {
	// Watch has the channel get something, once for each of what is to be told of the pod
	// behind these interfaces: bits of the enum tells of bpf/announcements. That is the token
	// of the connection, or 0. It returns false where that cannot be told.
	Watch(interfaces []int, what uint32, told chan<- uint32) bool
	// Unwatch has these things not be told any more.
	Unwatch(interfaces []int, what uint32)
}

// rest is when a follower stops listening, and what wakes it.
type rest struct {
	watcher    Watcher // nil where events are always listened to
	interfaces []int
	opens      bool // the agent opens the subflows
	// told is told of a connection that lasts, joined of one that a peer joins.
	told, joined chan uint32
	first, after time.Duration
	watched      time.Time // since when; zero while it is not
	unheard
}

// newRest is for pods of whose connections the packet program tells which of them last.
func (n *Namespace) newRest(settings Settings) *rest {
	first := max(restAfter, 2*settings.youngFor())
	r := &rest{
		opens: settings.Manager == v1alpha1.SubflowManagerAgent, first: first, after: first,
		told: make(chan uint32, 4), joined: make(chan uint32, 1), unheard: newUnheard(settings),
	}
	if n.isTold(settings) {
		r.watcher, r.interfaces = n.options.Watcher, n.options.Interfaces
	}
	return r
}

// isTold is true where the packet program tells of connections that last. This alone decides
// whether a pod may rest, and whether it may announce nothing. A full mesh is announced on each
// connection that a peer begins.
func (n *Namespace) isTold(settings Settings) bool {
	return n.options.Watcher != nil && len(n.options.Interfaces) > 0 && !settings.fullMesh() && settings.OpenAfter != (OpenAfter{})
}

// wakes is what wakes the follower. Where the agent opens the subflows, the kernel refuses those of
// peers while nobody listens.
func (r *rest) wakes(answers bool) uint32 {
	switch {
	case r.opens:
		return announcements.TellsLasting | announcements.TellsServed
	case answers:
		return announcements.TellsLasting | announcements.TellsAnswer
	}
	return announcements.TellsLasting
}

// watch has what lasts be told from now on, unless it is already.
func (r *rest) watch(answers bool, now time.Time) {
	if r.watcher != nil && r.watched.IsZero() && r.watcher.Watch(r.interfaces, r.wakes(answers), r.told) {
		r.watched = now
	}
}

// unwatch also ends what an agent that was killed has left.
func (r *rest) unwatch() {
	if r.watcher != nil {
		r.watcher.Unwatch(r.interfaces, r.wakes(true)|announcements.TellsJoin|announcements.RefusesJoins)
		if r.opens {
			r.watcher.Unwatch(r.interfaces, announcements.TellsBegun|announcements.TellsArrival)
		}
	}
	r.watched, r.looks = time.Time{}, nil
	for _, told := range []chan uint32{r.told, r.joined, r.begun} {
		for len(told) > 0 {
			<-told
		}
	}
}

// look is how soon to look again whether the pod can be left alone; nil for never.
func (r *rest) look() <-chan time.Time {
	if r.watcher == nil {
		return nil
	}
	return time.After(r.after)
}

// isDue: whatever was young when the watch began has lasted by now, and would be known.
func (r *rest) isDue(now time.Time) bool {
	return !r.watched.IsZero() && now.Sub(r.watched) >= r.after
}

// mayRest is true where nobody has to listen any more. Before that it has what lasts be told:
// no connection is missed in between.
func (f *follower) mayRest(now time.Time) bool {
	if f.lasting() || f.stale || f.servesLasting(now) {
		f.rest.unwatch()
		f.rest.after = max(restAgain, f.rest.after)
		return false
	}
	if f.rest.isDue(now) {
		f.leaveAlone()
		return true
	}
	f.rest.watch(!f.namespace.listens(), now)
	return false
}

// lasting is true while a connection is followed that lasts. With manager Kernel none is
// before that.
func (f *follower) lasting() bool {
	for _, c := range f.tracker.connections {
		if !f.rest.opens || !c.delayed.waits || c.delayed.held != nil {
			return true
		}
	}
	return false
}

// doze waits until a connection lasts, or the pod listens, and is false at the end of it all.
func (f *follower) doze() bool {
	compare := time.NewTimer(resync)
	defer compare.Stop()
	if f.rest.opens { // what wakes it may be a short connection that an overloaded node has kept waiting
		f.rest.after = f.rest.first
	}
	seen := map[uint32]bool{}
	for {
		select {
		case <-f.stopped:
			return false
		case token := <-f.rest.told:
			f.wake(token)
			return true
		case <-f.rest.joined:
			f.rest.after = restJoined
			return true
		case <-f.rest.begun:
			f.rest.looks = time.After(firstLook)
		case <-f.rest.looks:
			if f.lookAtUnheard() {
				return true
			}
		case <-f.onDemand.arrived:
			f.onDemand.watchServed()
		case <-f.onDemand.served:
			f.report(f.startAnnouncing(time.Now()))
		case <-f.onDemand.looks:
			f.lookAtArrived()
		case <-compare.C:
			next := f.resyncInTurn()
			compare.Reset(next)
			if next == resync && f.hasLasted(seen) { // it was its turn
				return true
			}
		}
	}
}

// wake is when a connection has lasted.
func (f *follower) wake(token uint32) {
	if f.rest.opens {
		f.tracker.hasLasted(token, time.Now())
		return
	}
	f.namespace.hear(true)
	f.report(f.namespace.reapply())
}

// hasLasted finds connections that say nothing, and so are not told: those that were there
// when it was looked before, too. All others are forgotten, as nobody would hear of their end.
func (f *follower) hasLasted(seen map[uint32]bool) bool {
	if f.stillServes() {
		return true
	}
	for token := range f.tracker.connections {
		if seen[token] {
			return true
		}
	}
	clear(seen)
	for token := range f.tracker.connections {
		seen[token] = true
		f.tracker.forget(token)
	}
	return false
}
