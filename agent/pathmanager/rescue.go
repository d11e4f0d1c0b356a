// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"container/list"
	"errors"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

const (
	// stuckRetries is how often in a row TCP has sent the same in vain on the only subflow of
	// a connection that stands still, and stuckTimeout how long it waits then, at least.
	stuckRetries, stuckTimeout = 2, 500 * time.Millisecond
	// rescueTurn is how often each of those that wait for room is looked at, and mostInTurn how
	// many are at once, at most.
	rescueTurn = time.Second
	mostInTurn = 64
)

// rescue gives another subflow to connections that stand still while they wait for room. Where many
// share a full path, some lose one attempt after the other, and TCP waits twice as long after each:
// with one subflow there is nothing else to send on.
func (f *follower) rescue(now time.Time) error {
	if f.tracker.settings.Manager != v1alpha1.SubflowManagerAgent || !f.share.crowd.MayRescue() {
		return nil
	}
	for _, c := range f.tracker.inTurn() {
		first, there, err := f.namespace.diagnostics.Subflow(c.local, c.remote)
		if err != nil {
			return err
		}
		if !there || !isStuck(&first) || !f.tracker.rescue(c, now) {
			continue
		}
		if err := f.openOne(c, now); err != nil {
			return err
		}
	}
	return nil
}

// openOne opens a subflow of a connection that goes on waiting for the others.
func (f *follower) openOne(c *connection, now time.Time) error {
	failed := f.locate(c)
	lacking := f.tracker.lacking(c, true)
	f.tracker.attempt(c, now)
	if len(lacking) > 0 {
		failed = errors.Join(failed, f.createOne(c, lacking[0], now))
	}
	return failed
}

func isStuck(s *mptcpnl.Subflow) bool {
	return s.TCP.Retries >= stuckRetries && s.TCP.Timeout >= stuckTimeout
}

// inTurn are the next ones to be looked at of those that wait for room.
func (t *tracker) inTurn() (next []*connection) {
	const looks = int(rescueTurn / heldLook)
	for range min(mostInTurn, (t.held.Len()+looks-1)/looks) {
		if t.turn == nil {
			t.turn = t.held.Front()
		}
		next = append(next, t.turn.Value.(*connection))
		t.turn = t.turn.Next()
	}
	return next
}

// rescue tells whether a connection that stands still may have another subflow now.
func (t *tracker) rescue(c *connection, now time.Time) bool {
	switch {
	case len(c.subflows) > 1, now.Sub(c.attempted) < maxBackoff, !t.mayJoin(c, now):
		return false
	case c.delayed.rescued: // nothing came of the last attempt
	case !t.share.crowd.Rescue():
		return false
	default:
		c.delayed.rescued = true
		t.rescued++
		t.share.counts.Rescued.Add(1)
	}
	return true
}

func (t *tracker) leaveHeld(place *list.Element) {
	if t.turn == place {
		t.turn = place.Next()
	}
	t.held.Remove(place)
	t.share.crowd.Wait(-1)
}

func (t *tracker) leaveRescued(c *connection) {
	if c.delayed.rescued {
		t.rescued--
		t.share.crowd.Rescued(1)
	}
}
