// SPDX-License-Identifier: Apache-2.0

package health

import (
	"slices"
	"time"
)

// Summary is what is known of one path to all peers together.
type Summary struct {
	// Probed counts the peers that have had enough probes to answer one; Alive, Dead
	// and Unknown those of these states.
	Probed, Alive, Dead, Unknown int
	// MedianRTT is the median of the smoothed round-trip times to peers that are
	// alive; 0 when none is known.
	MedianRTT time.Duration
	// Loss is the mean of the shares lost, from 0 to 1, towards peers alive or dead.
	Loss float64
	// Unreachable are the probed peers that do not answer, sorted.
	Unreachable []string
	// LosesLarge are those of them to which large packets alone are lost, sorted.
	LosesLarge []string
	// Distant are the peers to which the path is distant, sorted.
	Distant []string
}

// Summaries are by the names of the paths.
func (v View) Summaries() map[string]Summary {
	summaries := map[string]Summary{}
	rtts := map[string][]time.Duration{}
	for of, sample := range v.samples {
		summary := summaries[of.path]
		summary.add(of.peer, sample)
		summaries[of.path] = summary
		if sample.State == Alive && sample.RTT > 0 {
			rtts[of.path] = append(rtts[of.path], sample.RTT)
		}
	}
	for path, summary := range summaries {
		summary.MedianRTT = median(rtts[path])
		if judged := summary.Alive + summary.Dead; judged > 0 {
			summary.Loss /= float64(judged)
		}
		slices.Sort(summary.Unreachable)
		slices.Sort(summary.LosesLarge)
		slices.Sort(summary.Distant)
		summaries[path] = summary
	}
	return summaries
}

func (s *Summary) add(peer string, sample Sample) {
	if sample.Probed {
		s.Probed++
	}
	switch sample.State {
	case Alive:
		s.Alive++
		s.Loss += sample.Loss
	case Dead:
		s.Dead++
		s.Loss += sample.Loss
	default:
		s.Unknown++
	}
	if sample.State == Dead || sample.Probed && !sample.Answers {
		s.Unreachable = append(s.Unreachable, peer)
	}
	if sample.LosesLarge {
		s.LosesLarge = append(s.LosesLarge, peer)
	}
	if sample.Distant {
		s.Distant = append(s.Distant, peer)
	}
}

func median(durations []time.Duration) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	slices.Sort(durations)
	return durations[len(durations)/2]
}
