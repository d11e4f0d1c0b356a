// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// settling is how long what an earlier agent knew of the paths is better than
	// what the probes of this one have found so far.
	settling = time.Second
	// tellAgain lies between two messages about paths that are given up.
	tellAgain = 2 * time.Second
	// peersShown keeps messages short.
	peersShown = 3
	// hintMessage is the schema's limit to the message of a hint, in bytes.
	hintMessage = 512
)

// pathProber is what is used of health.Prober.
type pathProber interface {
	View() health.View
	Changed() <-chan struct{}
}

// hints makes the datapath follow what pods prefer, as long as the paths are good
// enough for it, and keeps it off dead paths. It says what became of the hints.
type hints struct {
	log       logr.Logger
	setHealth func(map[string]datapath.PeerHealth) error
	prober    pathProber // nil: nothing is known of any path
	wake      func()     // has the statuses published
	now       func() time.Time

	mu      sync.Mutex
	judge   health.Judge
	settled bool
	classes classes
	scene   scene
	lost    map[verdict]string // what is given up, and why
	told    map[verdict]string // and what the published statuses say
	toldAt  time.Time
}

// scene is what the last round of the agent saw.
type scene struct {
	paths []paths.Path
	peers []paths.Peer
}

// verdict names a path to a peer that is not good for a class of preferences.
type verdict struct {
	peer, path string
	class      int
}

// plan takes what a round saw and judges the paths for its endpoints, before the
// datapath gets them.
func (h *hints) plan(n *news, found []paths.Path) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.scene = scene{paths: found, peers: n.peers}
	h.classes = h.classes.assign(n.planEndpoints())
	_, err := h.update(h.now())
	return err
}

// endpoint is a pod as the datapath is to see it.
func (h *hints) endpoint(endpoint *v1alpha1.PlanEndpoint) datapath.Endpoint {
	h.mu.Lock()
	defer h.mu.Unlock()
	result := datapath.Endpoint{
		Addresses: endpointAddresses(endpoint), Paths: endpoint.Paths,
		Preferred: endpoint.Preferred, Backup: endpoint.Backup,
		SamePath: endpoint.Subflows.Mode == v1alpha1.SubflowModeNDiffPorts,
	}
	if endpoint.Preference != nil {
		result.Class, _ = h.classes.of(endpoint)
		result.Share = endpoint.Preference.Weight
	}
	return result
}

// run judges the paths anew whenever the probes have news, until the context ends.
// It does not wait for the agent's loop, nor for the API server.
func (h *hints) run(ctx context.Context) error {
	settled := time.After(settling)
	var changed <-chan struct{}
	if h.prober != nil {
		changed = h.prober.Changed()
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-settled:
			h.settle()
		case <-changed:
		case <-timer.C:
		}
		timer.Reset(h.again())
	}
}

func (h *hints) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settled = true
}

// again judges once more, and returns how soon it is to be done again.
func (h *hints) again() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := h.now()
	next, err := h.update(now)
	if err != nil {
		h.log.Error(err, "the datapath does not know how good its paths are; trying again", "after", firstRetry.String())
		return firstRetry
	}
	wait := resync
	if !next.IsZero() {
		wait = min(wait, next.Sub(now))
	}
	return max(time.Millisecond, min(wait, h.tell(now)))
}

// tell has the statuses published where they are no longer right, and returns when to
// look again.
func (h *hints) tell(now time.Time) time.Duration {
	if sameVerdicts(h.lost, h.told) {
		return resync
	}
	if wait := h.toldAt.Add(tellAgain).Sub(now); wait > 0 {
		return wait
	}
	h.toldAt = now
	h.wake()
	return tellAgain
}

func sameVerdicts(a, b map[verdict]string) bool {
	if len(a) != len(b) {
		return false
	}
	for of, why := range a {
		if b[of] != why {
			return false
		}
	}
	return true
}

// update judges the paths and tells the datapath. next is when it may come to another
// result though nothing changes.
func (h *hints) update(now time.Time) (next time.Time, err error) {
	var view health.View
	if h.prober != nil {
		view = h.prober.View()
	}
	peers, names := h.judged(view)
	preferences, indexes := h.classes.list()
	good, next := h.judge.Update(now, view, peers, names, preferences)
	h.remember(view, good, indexes)
	if !h.settled {
		return next, nil
	}
	if err := h.setHealth(peerHealth(view.Dead(), good, indexes)); err != nil {
		return next, fmt.Errorf("saying how good the paths are: %w", err)
	}
	return next, nil
}

// judged are the peers of whose paths something is known, and the paths.
func (h *hints) judged(view health.View) (peers, names []string) {
	for _, path := range h.scene.paths {
		names = append(names, path.Name)
	}
	for _, peer := range h.scene.peers {
		if slices.ContainsFunc(names, func(path string) bool { return view.Sample(peer.Name, path) != (health.Sample{}) }) {
			peers = append(peers, peer.Name)
		}
	}
	return peers, names
}

func peerHealth(dead map[string]map[string]bool, good map[string][]map[string]bool, indexes []int) map[string]datapath.PeerHealth {
	result := map[string]datapath.PeerHealth{}
	for peer, paths := range dead {
		result[peer] = datapath.PeerHealth{Dead: paths}
	}
	for peer, judged := range good {
		of := datapath.PeerHealth{Dead: dead[peer], Good: make([]map[string]bool, datapath.MaxClasses)}
		for i, paths := range judged {
			of.Good[indexes[i]] = paths
		}
		result[peer] = of
	}
	return result
}

// remember notes why paths are given up that somebody prefers: with the figures of
// that moment, so that a message stays as it is while they change.
func (h *hints) remember(view health.View, good map[string][]map[string]bool, indexes []int) {
	lost := map[verdict]string{}
	for peer, judged := range good {
		for i, paths := range judged {
			class := h.classes[indexes[i]]
			for path, isGood := range paths {
				of := verdict{peer, path, indexes[i]}
				if isGood || !class.paths[v1alpha1.PathName(path)] {
					continue
				}
				lost[of] = h.why(of, view)
			}
		}
	}
	h.lost = lost
}

const noAnswer = "it does not answer probes"

func (h *hints) why(of verdict, view health.View) string {
	sample, preference := view.Sample(of.peer, of.path), h.classes[of.class].preference
	if sample.State == health.Dead {
		return noAnswer
	}
	if before := h.lost[of]; before != "" {
		return before
	}
	if sample.Loss*100 > float64(preference.MaxLossPercent) {
		return fmt.Sprintf("it lost %.0f %% of the probes", sample.Loss*100)
	}
	best := sample.RTT
	for _, path := range h.scene.paths {
		if other := view.Sample(of.peer, path.Name); other.State == health.Alive && other.RTT > 0 {
			best = min(best, other.RTT)
		}
	}
	return fmt.Sprintf("its round trip took %s, and the best path's %s", rounded(sample.RTT), rounded(best))
}

// rounded has two digits, or three.
func rounded(d time.Duration) time.Duration {
	unit := time.Microsecond
	for unit*100 < d {
		unit *= 10
	}
	return d.Round(unit)
}
