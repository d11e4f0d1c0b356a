// SPDX-License-Identifier: Apache-2.0

package hints

import (
	"fmt"
	"slices"
	"time"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// judged are the peers of whose paths something is known, and the paths.
func (h *Hints) judged(view health.View) (peers, paths []string) {
	for _, path := range h.model.Paths {
		paths = append(paths, path.Name)
	}
	for _, peer := range h.model.Peers {
		if slices.ContainsFunc(paths, func(path string) bool { return view.Sample(peer.Name, path) != (health.Sample{}) }) {
			peers = append(peers, peer.Name)
		}
	}
	return peers, paths
}

// peerHealth is what the datapath is told. classes are those of the judged preferences.
func peerHealth(view health.View, good map[string][]map[string]bool, classes []int) map[string]datapath.PeerHealth {
	result := map[string]datapath.PeerHealth{}
	dead, distant := view.Dead(), view.Distant()
	for peer, paths := range dead {
		result[peer] = datapath.PeerHealth{Dead: paths}
	}
	for peer, judged := range good {
		of := datapath.PeerHealth{Dead: dead[peer], Distant: distant[peer], Good: make([]map[string]bool, node.MaxClasses)}
		for i, paths := range judged {
			of.Good[classes[i]] = paths
		}
		result[peer] = of
	}
	return result
}

// remember notes why paths are avoided that somebody prefers: with the figures of
// that moment, so that a message stays as it is while they change.
func (h *Hints) remember(view health.View, good map[string][]map[string]bool, classes []int) {
	avoided := map[candidate]string{}
	for peer, judged := range good {
		for i, paths := range judged {
			preferred := h.model.Preferences[classes[i]].Paths
			for path, isGood := range paths {
				if !isGood && preferred[v1alpha1.PathName(path)] {
					of := candidate{peer, path, classes[i]}
					avoided[of] = h.reason(of, view)
				}
			}
		}
	}
	h.avoided, h.statuses = avoided, map[string]preferenceStatus{}
}

const noAnswer = "it does not answer probes"

func (h *Hints) reason(of candidate, view health.View) string {
	sample, preference := view.Sample(of.peer, of.path), h.model.Preferences[of.class]
	if sample.State == health.Dead {
		return noAnswer
	}
	if before := h.avoided[of]; before != "" {
		return before
	}
	if sample.Loss*100 > float64(preference.MaxLossPercent) {
		return fmt.Sprintf("it lost %.0f %% of the probes", sample.Loss*100)
	}
	best := sample.RTT
	for _, path := range h.model.Paths {
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
