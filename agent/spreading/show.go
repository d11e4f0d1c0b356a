// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"maps"
	"slices"
	"strings"
	"time"

	"braid.dev/braid/internal/agentapi"
)

// show notes what a look found.
func (s *Spreading) show(p *pod, l *look, now time.Time) {
	shown := agentapi.Spreading{Endpoint: l.endpoint.FullName(), Time: now}
	if !p.at.IsZero() {
		shown.Seconds = now.Sub(p.at).Seconds()
	}
	if p.settled.told != (verdict{}) {
		shown.SpreadingStatus = *p.settled.told.status()
	}
	for i := range l.observed.connections {
		if l.observed.connections[i].speaks == speaksMPTCP {
			shown.Connections++
		} else {
			shown.PlainConnections++
		}
	}
	if s.totals[p.namespace] == nil {
		s.totals[p.namespace] = map[string]carried{}
	}
	for _, path := range slices.Sorted(maps.Keys(l.onPath)) {
		on, before := l.onPath[path], s.totals[p.namespace][path]
		shown.Paths = append(shown.Paths, *on)
		s.totals[p.namespace][path] = carried{before.sent + on.SentBytes, before.received + on.ReceivedBytes}
	}
	if len(shown.Paths) > 0 && shown.Paths[0].Path == "" { // the nameless one comes last
		shown.Paths = append(shown.Paths[1:], shown.Paths[0])
	}
	p.shown = shown
}

// Spreading lists what each pod's traffic did when it was looked at last, by name. It may
// be called at any time.
func (s *Spreading) Spreading() ([]agentapi.Spreading, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]agentapi.Spreading, 0, len(s.pods))
	for _, p := range s.pods {
		if !p.at.IsZero() {
			all = append(all, p.shown)
		}
	}
	slices.SortFunc(all, func(a, b agentapi.Spreading) int { return strings.Compare(a.Endpoint, b.Endpoint) })
	return all, nil
}
