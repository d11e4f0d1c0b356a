// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"

	"braid.dev/braid/api/v1alpha1"
)

const (
	// showStates, showFigures and showDistances lie between two changes of the node's status, where
	// a path became alive or dead, where only times and losses changed, and where only which
	// paths are distant did: with the load they may be, or not, every few seconds.
	showStates    = time.Second
	showFigures   = 5 * time.Second
	showDistances = time.Minute
	// peersShown are the unreachable peers that the status names of each path, and the distant ones.
	peersShown = 10
)

// show takes over what is known into what the status shows, and is true where that
// is to be published: states soon, figures now and then, and only where they differ
// by much, because every agent watches every node.
func (m *Monitor) show(now time.Time) bool {
	current := map[string]v1alpha1.NodePath{}
	for path, summary := range m.prober.View().Summaries() {
		current[path] = pathFigures(summary)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	differ := len(current) != len(m.shown)
	passed := now.Sub(m.shownAt)
	for path, figures := range current {
		before, known := m.shown[path]
		differ = differ || !known || statesDiffer(before, figures) || passed >= showFigures && figuresDiffer(before, figures) ||
			passed >= showDistances && distancesDiffer(before, figures)
	}
	if differ {
		m.logDistances(current)
		m.shown, m.shownAt = current, now
	}
	return differ
}

// logDistances tells of paths that have become distant, or are no longer, as often as the status does.
func (m *Monitor) logDistances(current map[string]v1alpha1.NodePath) {
	for path, figures := range current {
		if distancesDiffer(m.shown[path], figures) {
			m.options.Log.Info("the nodes to which answers take much longer by a path than by others have changed", "path", path, "nodes", figures.DistantTo)
		}
	}
}

func distancesDiffer(a, b v1alpha1.NodePath) bool { return !slices.Equal(a.DistantTo, b.DistantTo) }

func pathFigures(summary Summary) v1alpha1.NodePath {
	unreachable := summary.Unreachable[:min(len(summary.Unreachable), peersShown)]
	return v1alpha1.NodePath{
		PeersProbed:      int32(summary.Probed),
		PeersAlive:       int32(summary.Alive),
		MedianRTTMicros:  twoDigits(summary.MedianRTT.Microseconds()),
		LossPercent:      int32(summary.Loss*100 + 0.5),
		Unreachable:      unreachable,
		LargePacketsLost: slices.DeleteFunc(slices.Clone(summary.LosesLarge), func(peer string) bool { return !slices.Contains(unreachable, peer) }),
		DistantTo:        summary.Distant[:min(len(summary.Distant), peersShown)],
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
	return a.PeersProbed != b.PeersProbed || a.PeersAlive != b.PeersAlive || !slices.Equal(a.Unreachable, b.Unreachable) || !slices.Equal(a.LargePacketsLost, b.LargePacketsLost)
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

// Describe adds what is known of a path to what the node's status says of it.
func (m *Monitor) Describe(path *v1alpha1.NodePath) {
	m.mu.Lock()
	defer m.mu.Unlock()
	figures := m.shown[string(path.Name)]
	path.PeersProbed, path.PeersAlive = figures.PeersProbed, figures.PeersAlive
	path.MedianRTTMicros, path.LossPercent = figures.MedianRTTMicros, figures.LossPercent
	path.Unreachable, path.LargePacketsLost, path.DistantTo = figures.Unreachable, figures.LargePacketsLost, figures.DistantTo
}
