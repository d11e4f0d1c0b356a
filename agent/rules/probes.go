// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
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

// probes make ends of subflows send acknowledgements that would not come by
// themselves, and that are waited for.
type probes struct {
	log    logr.Logger
	untold func() (untold []chains.Untold, more bool, err error)
	wake   chan struct{}
	known  map[probed]lookedAt
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

func newProbes(untold func() ([]chains.Untold, bool, error), log logr.Logger) *probes {
	return &probes{log: log, untold: untold, wake: make(chan struct{}, 1), known: map[probed]lookedAt{}}
}

// changed says that rules may have changed. It does not wait.
func (p *probes) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run probes until the context ends.
func (p *probes) Run(ctx context.Context) error {
	opened, err := probe.Open()
	if err != nil {
		p.log.Error(err, "idle subflows are told of changed rules when packets pass on them")
		return nil
	}
	defer opened.Close()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		case <-again:
		}
		again = nil
		begin := time.Now()
		if p.round(opened) {
			again = time.After(max(probing, share*time.Since(begin)))
		}
	}
}

// round probes what waits, and says whether to look again.
func (p *probes) round(to prober) bool {
	untold, more, err := p.untold()
	if err != nil {
		p.log.Error(err, "it is not known which subflows have to be told of changed rules")
	}
	known, sent := make(map[probed]lookedAt, len(untold)), 0
	for i := range untold {
		u := &untold[i]
		key := probed{u.Chain, u.Local.AddrPort, u.Remote.AddrPort}
		before, again := p.known[key]
		now := lookedAt{u.Local.Next, u.Remote.Next, before.probes}
		if before.probes < mostProbes && sent < probesAtOnce {
			here := p.one(to, &u.Local, &u.Remote, u.Idle || again && before.remoteNext == u.Remote.Next)
			there := p.one(to, &u.Remote, &u.Local, u.Idle || again && before.localNext == u.Local.Next)
			sent += here + there
			now.probes += max(here, there)
		}
		known[key] = now
	}
	p.known = known
	return more || sent > 0
}

// one probes an end when it is to say something and is sent nothing by the other, or
// else it would acknowledge that. It returns how many probes were sent.
func (p *probes) one(by prober, to, from *chains.UntoldEnd, still bool) int {
	if !to.Wanted || !still {
		return 0
	}
	if err := by.Probe(probe.End{AddrPort: to.AddrPort, Next: to.Next}, probe.End{AddrPort: from.AddrPort, Next: from.Next}); err != nil {
		p.log.V(1).Info("an idle subflow cannot be probed", "reason", err.Error())
	}
	return 1
}
