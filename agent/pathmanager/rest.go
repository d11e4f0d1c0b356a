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
	// its events any more, at first; restAgain, once it has had one meanwhile.
	restAfter = time.Second
	restAgain = 10 * time.Second
)

// errAtRest ends the following of a pod that only has connections which stay short. The
// kernel makes some six events of each connection where somebody listens, and looks for each
// of them at all who listen on the node: more than all else that Braid costs a short one.
var errAtRest = errors.New("no connection of the pod lasts")

// Watcher tells of pods to whose events nobody listens: it is announcements.Holder.
type Watcher interface {
	// Watch has the channel get something, once for each of what is to be told of the pod
	// behind these interfaces: bits of the enum tells of bpf/announcements. It returns false
	// where that cannot be told.
	Watch(interfaces []int, what uint32, told chan<- struct{}) bool
	// Unwatch has these things not be told any more.
	Unwatch(interfaces []int, what uint32)
}

// rest is when a follower stops listening, and what wakes it.
type rest struct {
	watcher    Watcher // nil where events are always listened to
	interfaces []int
	told       chan struct{}
	after      time.Duration
	watched    time.Time // since when; zero while it is not
}

// newRest is for pods whose connections wait for announcements that are held: the same
// program tells which of them lasts. With the other manager the agent opens the subflows.
func (n *Namespace) newRest(settings Settings) *rest {
	r := &rest{told: make(chan struct{}, 1), after: max(restAfter, 2*settings.youngFor())}
	if n.isTold(settings) {
		r.watcher, r.interfaces = n.options.Watcher, n.options.Interfaces
	}
	return r
}

// isTold is true where the packet program tells of connections that last. This alone decides
// whether a pod may rest, and whether it may announce nothing.
func (n *Namespace) isTold(settings Settings) bool {
	return n.options.Watcher != nil && len(n.options.Interfaces) > 0 &&
		settings.Manager == v1alpha1.SubflowManagerKernel && settings.OpenAfter != (OpenAfter{})
}

// watch has what lasts be told from now on, unless it is already.
func (r *rest) watch(answers bool, now time.Time) {
	what := uint32(announcements.TellsLasting)
	if answers {
		what |= announcements.TellsAnswer
	}
	if r.watcher != nil && r.watched.IsZero() && r.watcher.Watch(r.interfaces, what, r.told) {
		r.watched = now
	}
}

func (r *rest) unwatch() {
	if !r.watched.IsZero() {
		r.watcher.Unwatch(r.interfaces, announcements.TellsLasting|announcements.TellsAnswer)
		r.watched = time.Time{}
	}
	select {
	case <-r.told:
	default:
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
	if len(f.tracker.connections) > 0 || f.stale {
		f.rest.unwatch()
		f.rest.after = max(restAgain, f.rest.after)
		return false
	}
	due := f.rest.isDue(now)
	f.rest.watch(!f.namespace.listens(), now)
	return due
}

// doze waits until a connection lasts, or the pod listens, and is false at the end of it all.
func (f *follower) doze() bool {
	compare := time.NewTimer(resync)
	defer compare.Stop()
	defer f.rest.unwatch()
	seen := map[uint32]bool{}
	for {
		select {
		case <-f.stopped:
			return false
		case <-f.rest.told:
			f.namespace.hear(true)
			f.report(f.namespace.reapply())
			return true
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

// hasLasted finds connections that say nothing, and so are not told: those that were there
// when it was looked before, too. All others are forgotten, as nobody would hear of their end.
func (f *follower) hasLasted(seen map[uint32]bool) bool {
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
