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
	// probing is how often a silent subflow is probed: kernels answer such a segment
	// twice a second at most.
	probing = 550 * time.Millisecond
	// mostProbes is how often its ends are asked under the same rules.
	mostProbes = 30
	// probesAtOnce bounds the burst where very many subflows are silent.
	probesAtOnce = 1024
)

// probes make silent subflows say something, so that their ends are told what has
// changed.
type probes struct {
	log    logr.Logger
	silent func() ([]chains.Silent, error)
	wake   chan struct{}
	asked  map[probed]int
}

// probed is a subflow under certain rules.
type probed struct {
	chain         uint64
	local, remote netip.AddrPort
}

// prober makes the ends of a subflow say something.
type prober interface {
	Probe(subflow probe.Subflow) error
}

func newProbes(silent func() ([]chains.Silent, error), log logr.Logger) *probes {
	return &probes{log: log, silent: silent, wake: make(chan struct{}, 1), asked: map[probed]int{}}
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
		if p.round(opened) {
			again = time.After(probing)
		}
	}
}

// round probes what is silent, and says whether there is any.
func (p *probes) round(to prober) bool {
	silent, err := p.silent()
	if err != nil {
		p.log.Error(err, "it is not known which subflows are silent")
	}
	asked, sent := map[probed]int{}, 0
	for _, s := range silent {
		key := probed{s.Chain, s.Local, s.Remote}
		asked[key] = p.asked[key]
		if asked[key] >= mostProbes || sent >= probesAtOnce {
			continue
		}
		asked[key]++
		sent++
		if err := to.Probe(probe.Subflow{Local: s.Local, Remote: s.Remote, LocalNext: s.LocalNext, RemoteNext: s.RemoteNext}); err != nil {
			p.log.V(1).Info("a silent subflow cannot be probed", "reason", err.Error())
		}
	}
	p.asked = asked
	return sent > 0
}
