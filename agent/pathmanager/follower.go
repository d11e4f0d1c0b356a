// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/pathmanager/mptcpnl"
)

const (
	// resync is how often the namespace and its sockets are looked at without any
	// cause, for what no event told.
	resync = 10 * time.Second
	// retry is how soon events are subscribed to again after an error.
	retry = time.Second
)

// follower follows the connections of a namespace and has missing subflows
// opened.
type follower struct {
	namespace *Namespace
	tracker   *tracker
	log       logr.Logger
	reported  string // the last error
	stopped   chan struct{}
	done      sync.WaitGroup
}

func follow(n *Namespace, settings Settings) (*follower, error) {
	announcesIPv6, err := n.sysctls.announcesIPv6()
	if err != nil {
		return nil, err
	}
	f := &follower{
		namespace: n, tracker: newTracker(settings, announcesIPv6), log: n.options.Log, stopped: make(chan struct{}),
	}
	f.done.Go(f.run)
	return f, nil
}

func (f *follower) stop() {
	close(f.stopped)
	f.done.Wait()
}

func (f *follower) run() {
	for {
		err := f.followEvents()
		if err == nil {
			return
		}
		f.log.Error(err, "following connections; trying again", "after", retry)
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

// followEvents returns nil when the follower is stopped.
func (f *follower) followEvents() error {
	subscription, err := mptcpnl.Subscribe(int(f.namespace.file.Fd()))
	if err != nil {
		return err
	}
	events := make(chan received)
	var receiver sync.WaitGroup
	receiver.Go(func() { receive(subscription, events, f.stopped) })
	// What happened before the subscription is found by looking.
	err = f.look()
	if err == nil {
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
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
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
		case <-ticker.C:
			if err := f.resync(); err != nil {
				f.log.Error(err, "looking for drift")
			}
		case <-wait:
		}
		cancel()
		f.report(f.openMissing())
	}
}

// report logs an error once, however often what is tried again fails for it.
func (f *follower) report(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != f.reported && err != nil {
		f.log.Error(err, "opening subflows; trying again")
	}
	f.reported = text
}

// wait returns a channel that is ready when something is due.
func (f *follower) wait() (<-chan time.Time, func()) {
	next, ok := f.tracker.next()
	if !ok {
		return nil, func() {}
	}
	timer := time.NewTimer(time.Until(next))
	return timer.C, func() { timer.Stop() }
}

func (f *follower) handle(got received) error {
	if errors.Is(got.err, mptcpnl.ErrEventsLost) {
		return f.look()
	}
	if got.err != nil {
		return got.err
	}
	now := time.Now()
	for _, event := range got.events {
		f.tracker.handle(event, now)
		if listener, ok := event.(mptcpnl.ListenerEvent); ok && listener.Kind == mptcpnl.ListenerCreated {
			if err := f.namespace.reapply(); err != nil {
				f.log.Error(err, "announcing the addresses of a pod that listens")
			}
		}
	}
	return nil
}

// look finds the connections and subflows that there are.
func (f *follower) look() error {
	connections, err := f.namespace.diagnostics.Connections()
	if err != nil {
		return err
	}
	subflows, err := f.namespace.diagnostics.Subflows()
	if err != nil {
		return err
	}
	f.tracker.replace(connections, subflows)
	return nil
}

func (f *follower) resync() error {
	return errors.Join(f.look(), f.namespace.reapply())
}

// openMissing has the subflows opened that are missing and due. Before anything
// is tried again it looks what is under way, so as not to open too many.
func (f *follower) openMissing() error {
	now := time.Now()
	due := f.tracker.due(now)
	for _, c := range due {
		if c.attempts == 0 {
			continue
		}
		if err := f.look(); err != nil {
			return err
		}
		due = f.tracker.due(now)
		break
	}
	return errors.Join(f.create(due, now), f.nudge(f.tracker.due(now), now))
}

// create opens subflows of the connections that the agent is in charge of.
func (f *follower) create(due []*connection, now time.Time) error {
	var failed error
	for _, c := range due {
		if c.byKernel {
			continue
		}
		missing := f.tracker.missing(c, true)
		c.attempt(now)
		for i := 0; i < missing && !c.byKernel; i++ {
			if err := f.createOne(c, now); err != nil {
				failed = errors.Join(failed, err)
				break
			}
		}
	}
	return failed
}

func (f *follower) createOne(c *connection, now time.Time) error {
	err := f.namespace.client.CreateSubflow(c.token, mptcpnl.Endpoint{Address: c.local.Addr()}, c.remote)
	switch {
	case err == nil, errors.Is(err, unix.ENOTCONN): // its handshake ends just now
		return nil
	case strings.Contains(err.Error(), "userspace PM not selected"):
		c.attempts = 0
		f.tracker.leaveToKernel(c, now)
		return nil
	case strings.Contains(err.Error(), "invalid token"):
		delete(f.tracker.connections, c.token)
		return nil
	}
	return err
}

// nudge makes the kernel open subflows of the connections that it is in charge
// of, one of each at a time.
func (f *follower) nudge(due []*connection, now time.Time) error {
	missing := map[bool]int{} // by whether it is IPv4
	for _, c := range due {
		if !c.byKernel {
			continue
		}
		is4 := c.remote.Addr().Is4()
		missing[is4] = max(missing[is4], f.tracker.missing(c, true))
		c.attempt(now)
	}
	var failed error
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
