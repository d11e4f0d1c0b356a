// SPDX-License-Identifier: Apache-2.0

// Package hints makes the datapath follow what pods prefer, as long as the paths are
// good enough for it, and keeps it off dead paths. The status of each pod says what
// became of its hints.
package hints

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// settling is how long what an earlier agent knew of the paths is better than
	// what the probes of this one have found so far.
	settling = time.Second
	// notifyAgain lies between two notifications that statuses are out of date.
	notifyAgain = 2 * time.Second
	// retry is after how long the datapath is told again what it refused.
	retry = 500 * time.Millisecond
	// longestWait lies between two judgements that nothing asks for.
	longestWait = 30 * time.Second
)

// Prober knows how good the paths are; a health.Monitor is one.
type Prober interface {
	View() health.View
	Changed() <-chan struct{}
}

// Options of Hints.
type Options struct {
	// SetHealth tells the datapath how good the paths are.
	SetHealth func(map[string]datapath.PeerHealth) error
	Prober    Prober
	// Notify has the plan's status published. It must not wait for that.
	Notify func()
	Log    logr.Logger
}

// Hints is the node.Part that judges how good the paths are.
type Hints struct {
	options Options
	now     func() time.Time

	mu       sync.Mutex
	model    *node.Model
	judge    health.Judge
	settled  bool
	avoided  map[candidate]string // paths that are preferred and not good, and why
	statuses map[string]preferenceStatus
	// published is what avoided was in the statuses that were asked for last.
	published  map[candidate]string
	notifiedAt time.Time
}

// candidate is a path to a peer, as a class of preferences sees it.
type candidate struct {
	peer, path string
	class      int
}

// New judges nothing yet.
func New(options Options) *Hints {
	options.Log = options.Log.WithName("hints")
	return &Hints{options: options, now: time.Now, model: &node.Model{}}
}

// Apply judges the paths of the model for the preferences of its endpoints. The
// report describes what became of the hints by the time at which it is read.
func (h *Hints) Apply(_ context.Context, model *node.Model) (report node.Report) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.model = model
	if known, _ := model.Preferences.List(); len(known) == 0 {
		h.published = nil // no status tells of any
	}
	_, report.Err = h.update(h.now())
	for i := range model.Endpoints {
		endpoint := model.Endpoints[i].PlanEndpoint
		report.Describe(endpoint.UID, func(status *v1alpha1.EndpointStatus) { status.Hints = h.describe(endpoint) })
	}
	return report
}

// Run judges the paths anew whenever the probes show a change, until the context
// ends. It does not wait for Apply, nor for the API server.
func (h *Hints) Run(ctx context.Context) error {
	settled := time.After(settling)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-settled:
			h.settle()
		case <-h.options.Prober.Changed():
		case <-timer.C:
		}
		timer.Reset(h.again())
	}
}

// Remove has nothing to do: what the datapath was told goes with its maps.
func (h *Hints) Remove(context.Context) error { return nil }

// Close has nothing to do.
func (h *Hints) Close() error { return nil }

func (h *Hints) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = true
}

// again judges once more, and returns how soon it is to be done again.
func (h *Hints) again() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	next, err := h.update(now)
	if err != nil {
		h.options.Log.Error(err, "failed to write the health of paths to the datapath; trying again", "after", retry.String())
		return retry
	}
	wait := longestWait
	if !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	return max(time.Millisecond, min(wait, h.notify(now)))
}

// notify has statuses that are out of date published, and returns when to look again.
func (h *Hints) notify(now time.Time) time.Duration {
	if maps.Equal(h.avoided, h.published) {
		return longestWait
	}
	if wait := h.notifiedAt.Add(notifyAgain).Sub(now); wait > 0 {
		return wait
	}
	h.notifiedAt = now
	h.options.Notify()
	return notifyAgain
}

// update judges the paths and tells the datapath. next is when it may come to another
// result though nothing changes.
func (h *Hints) update(now time.Time) (next time.Time, err error) {
	view := h.options.Prober.View()
	peers, paths := h.judged(view)
	preferences, classes := h.model.Preferences.List()
	good, next := h.judge.Update(now, view, peers, paths, preferences)
	h.remember(view, good, classes)
	if !h.settled {
		return next, nil
	}
	if err := h.options.SetHealth(peerHealth(view, good, classes)); err != nil {
		return next, fmt.Errorf("failed to tell the datapath how good its paths are: %w", err)
	}
	return next, nil
}
