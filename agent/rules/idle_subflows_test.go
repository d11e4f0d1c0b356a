// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/probe"
)

// sender counts the probes to each end.
type sender struct {
	sent map[netip.AddrPort]int
	err  error
}

func (s *sender) Probe(to, _ probe.End) error {
	s.sent[to.AddrPort]++
	return s.err
}

var (
	pod  = netip.MustParseAddrPort("10.0.0.1:1")
	peer = netip.MustParseAddrPort("10.0.0.2:2")
)

func waitingOf(chain uint64, local, remote, idle bool) chains.WaitingSubflow {
	return chains.WaitingSubflow{
		Chain: chain, Idle: idle,
		Local:  chains.WaitingEnd{AddrPort: pod, Wanted: local},
		Remote: chains.WaitingEnd{AddrPort: peer, Wanted: remote},
	}
}

// rounds are probes of what a test says.
type rounds struct {
	*idleSubflows
	sender
	waiting []chains.WaitingSubflow
	more    bool
}

func newRounds() *rounds {
	r := &rounds{sender: sender{sent: map[netip.AddrPort]int{}, err: errors.New("unreachable")}}
	r.idleSubflows = newIdleSubflows(func() ([]chains.WaitingSubflow, bool, error) { return r.waiting, r.more, nil }, logr.Discard())
	return r
}

func (r *rounds) expect(t *testing.T, toPod, toPeer int) {
	t.Helper()
	if r.sent[pod] != toPod || r.sent[peer] != toPeer {
		t.Errorf("there were probes %v instead of %d and %d", r.sent, toPod, toPeer)
	}
}

func TestAnIdleSubflowIsProbedUntilItAnswersOrNeverWill(t *testing.T) {
	r := newRounds()
	r.waiting = []chains.WaitingSubflow{waitingOf(1, true, false, true)}
	for range 2 * mostProbes {
		r.round(r)
	}
	r.expect(t, mostProbes, 0)
	if r.round(r) {
		t.Error("what never answers is looked at for ever")
	}
	r.waiting[0].Chain = 2
	if !r.round(r) {
		t.Error("it is not looked at again")
	}
	r.expect(t, mostProbes+1, 0)
	r.waiting = nil
	if r.round(r) || len(r.known) > 0 {
		t.Errorf("of nothing it remembers %v", r.known)
	}
	r.more = true
	if !r.round(r) {
		t.Error("what may have to be told later is not looked at again")
	}
}

func TestAnEndIsProbedOnlyWhileTheOtherSendsNothing(t *testing.T) {
	r := newRounds()
	r.waiting, r.more = []chains.WaitingSubflow{waitingOf(1, true, true, false)}, true
	r.round(r)
	r.expect(t, 0, 0) // not known yet
	r.waiting[0].Local.Next++
	r.round(r)
	r.expect(t, 1, 0) // the pod sends, so the peer acknowledges by itself
	r.waiting[0].Remote.Next++
	r.round(r)
	r.expect(t, 1, 1)
}
