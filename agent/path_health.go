// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

const (
	// lookForActive is how often it is asked which peers flows go to.
	lookForActive = 500 * time.Millisecond
	// stayActive is how long a peer is probed often after its last packet.
	stayActive = 5 * time.Second
	// showStates and showFigures lie between two changes of the node's status, where
	// a path became alive or dead, and where only times and losses changed.
	showStates  = time.Second
	showFigures = 5 * time.Second
	// unreachableShown are the peers that the status names of each path.
	unreachableShown = 10
)

// pathHealth probes the paths to the peers, answers their probes, and shows what is
// known of the paths.
type pathHealth struct {
	log       logr.Logger
	prober    *health.Prober
	responder *health.Responder
	active    func() (map[string]bool, error) // peers that flows went to since the last call
	wake      func()                          // has the node's status published

	mu      sync.Mutex
	targets []health.Target
	usedAt  map[string]time.Time // when flows last went to a peer
	shown   map[string]v1alpha1.NodePath
	shownAt time.Time
}

func openPathHealth(options Options, active func() (map[string]bool, error), wake func()) (*pathHealth, error) {
	log := options.Log.WithName("health")
	settings := health.Options{Port: options.HealthPort, Log: log}
	prober, err := health.New(settings)
	if err != nil {
		return nil, err
	}
	responder, err := health.NewResponder(settings)
	if err != nil {
		return nil, errors.Join(err, prober.Close())
	}
	return &pathHealth{
		log: log, prober: prober, responder: responder, active: active, wake: wake, usedAt: map[string]time.Time{},
	}, nil
}

func (h *pathHealth) close() error {
	return errors.Join(h.prober.Close(), h.responder.Close())
}

// plan has the paths probed, and probes answered, that a round saw.
func (h *pathHealth) plan(n *news, found []paths.Path) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.targets = targetsOf(found, n.peers)
	h.setTargets(time.Now())
	h.responder.SetListeners(listenersOf(found))
}

// targetsOf are the paths that are up at both ends.
func targetsOf(found []paths.Path, peers []paths.Peer) (targets []health.Target) {
	for _, path := range found {
		if path.Index == 0 || !path.Usable {
			continue
		}
		for _, peer := range peers {
			there := peer.Paths[path.Name]
			if local, remote, ok := ends(path, there); ok && there.Up {
				targets = append(targets, health.Target{
					Peer: peer.Name, Path: path.Name, Interface: path.Index, Local: local, Remote: remote,
				})
			}
		}
	}
	return targets
}

// ends are addresses of one family: the first of the peer's that this node has one
// for, and of this node's the one of that network, or else the first.
func ends(here paths.Path, there paths.PeerPath) (local, remote netip.Addr, ok bool) {
	for _, remote := range there.Addresses {
		for _, own := range here.Addresses {
			if own.Addr().Is4() != remote.Is4() {
				continue
			}
			if own.Contains(remote) {
				return own.Addr(), remote, true
			}
			if !local.IsValid() {
				local = own.Addr()
			}
		}
		if local.IsValid() {
			return local, remote, true
		}
	}
	return local, remote, false
}

func listenersOf(found []paths.Path) (listeners []health.Listener) {
	for _, path := range found {
		if path.Index == 0 || !path.Usable {
			continue
		}
		for _, address := range path.Addresses {
			listeners = append(listeners, health.Listener{Interface: path.Index, Address: address.Addr()})
		}
	}
	return listeners
}

// setTargets tells the prober which peers flows go to.
func (h *pathHealth) setTargets(now time.Time) {
	for peer, used := range h.usedAt {
		if now.Sub(used) > stayActive {
			delete(h.usedAt, peer)
		}
	}
	targets := make([]health.Target, len(h.targets))
	for i, target := range h.targets {
		_, target.Active = h.usedAt[target.Peer]
		targets[i] = target
	}
	h.prober.SetTargets(targets)
}

// run works until the context ends.
func (h *pathHealth) run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return h.prober.Run(ctx) })
	running.Go(func() error { return h.responder.Run(ctx) })
	running.Go(func() error { h.follow(ctx); return nil })
	return running.Wait()
}

// follow keeps up with which peers are active, and with what the status shows.
func (h *pathHealth) follow(ctx context.Context) {
	look, show := time.NewTicker(lookForActive), time.NewTicker(showStates)
	defer look.Stop()
	defer show.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			h.lookForActive(now)
		case now := <-show.C:
			if h.show(now) {
				h.wake()
			}
		}
	}
}

// lookForActive has peers probed often that flows go to.
func (h *pathHealth) lookForActive(now time.Time) {
	active, err := h.active()
	if err != nil {
		h.log.Error(err, "finding the nodes that flows go to; others are probed less often")
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	changed := false
	for peer := range active {
		_, known := h.usedAt[peer]
		changed = changed || !known
		h.usedAt[peer] = now
	}
	for _, used := range h.usedAt {
		changed = changed || now.Sub(used) > stayActive
	}
	if changed {
		h.setTargets(now)
	}
}

// show takes over what is known into what the status shows, and is true where that
// is to be published: states soon, figures now and then, and only where they differ
// by much, because every agent watches every node.
func (h *pathHealth) show(now time.Time) bool {
	current := map[string]v1alpha1.NodePath{}
	for path, summary := range h.prober.View().Summaries() {
		current[path] = pathFigures(summary)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	differ := len(current) != len(h.shown)
	due := now.Sub(h.shownAt) >= showFigures
	for path, figures := range current {
		before, known := h.shown[path]
		differ = differ || !known || statesDiffer(before, figures) || due && figuresDiffer(before, figures)
	}
	if differ {
		h.shown, h.shownAt = current, now
	}
	return differ
}

func pathFigures(summary health.Summary) v1alpha1.NodePath {
	return v1alpha1.NodePath{
		PeersProbed:     int32(summary.Probed),
		PeersAlive:      int32(summary.Alive),
		MedianRTTMicros: twoDigits(summary.MedianRTT.Microseconds()),
		LossPercent:     int32(summary.Loss*100 + 0.5),
		Unreachable:     summary.Unreachable[:min(len(summary.Unreachable), unreachableShown)],
	}
}

// twoDigits rounds to two significant digits.
func twoDigits(value int64) int64 {
	unit := int64(1)
	for value/unit >= 100 {
		unit *= 10
	}
	return (value + unit/2) / unit * unit
}

func statesDiffer(a, b v1alpha1.NodePath) bool {
	return a.PeersProbed != b.PeersProbed || a.PeersAlive != b.PeersAlive || !reflect.DeepEqual(a.Unreachable, b.Unreachable)
}

const (
	// worthShowing is the part of a time by which it must differ, and at least so
	// many microseconds; and how many percent of loss.
	worthShowing       = 4
	worthShowingMicros = 200
	worthShowingLoss   = 5
)

func figuresDiffer(a, b v1alpha1.NodePath) bool {
	rtt := max(a.MedianRTTMicros-b.MedianRTTMicros, b.MedianRTTMicros-a.MedianRTTMicros)
	loss := max(a.LossPercent-b.LossPercent, b.LossPercent-a.LossPercent)
	return rtt > max(a.MedianRTTMicros/worthShowing, worthShowingMicros) || loss >= worthShowingLoss ||
		(a.LossPercent == 0) != (b.LossPercent == 0)
}

// describe adds what is known of a path to what the status says of it.
func (h *pathHealth) describe(path *v1alpha1.NodePath) {
	h.mu.Lock()
	defer h.mu.Unlock()
	figures := h.shown[string(path.Name)]
	path.PeersProbed, path.PeersAlive = figures.PeersProbed, figures.PeersAlive
	path.MedianRTTMicros, path.LossPercent = figures.MedianRTTMicros, figures.LossPercent
	path.Unreachable = figures.Unreachable
}
