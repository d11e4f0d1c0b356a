// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"context"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/probe"
)

const (
	// probing is how often an end is probed: kernels answer such a segment twice a
	// second at most.
	probing = 550 * time.Millisecond
	// mostProbes is how often, under the same rules.
	mostProbes = 30
	// probesAtOnce bounds the burst where very many subflows are idle.
	probesAtOnce = 1024
	// share of the time that may be spent on looking, where very many subflows are
	// remembered, is one part in so many.
	share = 20
)

// idleSubflows probes ends of subflows, to make them send acknowledgements that would
// not come by themselves, and that are waited for.
type idleSubflows struct {
	log     logr.Logger
	waiting func() (waiting []chains.WaitingSubflow, more bool, err error)
	wake    chan struct{}
	known   map[probed]lookedAt
}

// probed is a subflow under certain rules.
type probed struct {
	chain         uint64
	local, remote netip.AddrPort
}

// lookedAt is what was seen of it last.
type lookedAt struct {
	localNext, remoteNext uint32
	probes                int
}

// prober makes an end of a subflow send an acknowledgement.
type prober interface {
	Probe(to, from probe.End) error
}

func newIdleSubflows(waiting func() ([]chains.WaitingSubflow, bool, error), log logr.Logger) *idleSubflows {
	return &idleSubflows{log: log, waiting: waiting, wake: make(chan struct{}, 1), known: map[probed]lookedAt{}}
}

// Apply lets Run look again: rules may have changed. It does not wait.
func (s *idleSubflows) Apply(context.Context, *node.Model) (report node.Report) {
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return report
}

// Remove has nothing to undo.
func (s *idleSubflows) Remove(context.Context) error { return nil }

// Close has nothing to let go of.
func (s *idleSubflows) Close() error { return nil }

// Run probes until the context ends.
func (s *idleSubflows) Run(ctx context.Context) error {
	opened, err := probe.Open()
	if err != nil {
		s.log.Error(err, "failed to open raw sockets for probes: idle subflows are told of changed rules when packets pass on them")
		return nil
	}
	defer opened.Close()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-again:
		}
		again = nil
		begin := time.Now()
		if s.round(opened) {
			again = time.After(max(probing, share*time.Since(begin)))
		}
	}
}

// round probes what waits, and says whether to look again.
func (s *idleSubflows) round(to prober) bool {
	waiting, more, err := s.waiting()
	if err != nil {
		s.log.Error(err, "failed to list the subflows that wait for acknowledgements")
	}
	known, sent := make(map[probed]lookedAt, len(waiting)), 0
	for i := range waiting {
		u := &waiting[i]
		key := probed{u.Chain, u.Local.AddrPort, u.Remote.AddrPort}
		before, again := s.known[key]
		now := lookedAt{u.Local.Next, u.Remote.Next, before.probes}
		if before.probes < mostProbes && sent < probesAtOnce {
			here := s.one(to, &u.Local, &u.Remote, u.Idle || again && before.remoteNext == u.Remote.Next)
			there := s.one(to, &u.Remote, &u.Local, u.Idle || again && before.localNext == u.Local.Next)
			sent += here + there
			now.probes += max(here, there)
		}
		known[key] = now
	}
	s.known = known
	return more || sent > 0
}

// one probes an end when it is to say something and is sent nothing by the other, or
// else it would acknowledge that. It returns how many probes were sent.
func (s *idleSubflows) one(by prober, to, from *chains.WaitingEnd, still bool) int {
	if !to.Wanted || !still {
		return 0
	}
	if err := by.Probe(probe.End{AddrPort: to.AddrPort, Next: to.Next}, probe.End{AddrPort: from.AddrPort, Next: from.Next}); err != nil {
		s.log.V(1).Info("failed to probe an idle subflow", "reason", err.Error())
	}
	return 1
}
