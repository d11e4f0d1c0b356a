// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/probe"
)

// sender counts the probes to each subflow.
type sender struct {
	sent map[netip.AddrPort]int
	err  error
}

func (s *sender) Probe(subflow probe.Subflow) error {
	s.sent[subflow.Local]++
	return s.err
}

func TestSilentSubflowsAreProbedUntilTheyAnswerOrNeverWill(t *testing.T) {
	answers, mute := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.1:2")
	silent := []chains.Silent{{Chain: 1, Local: answers}, {Chain: 1, Local: mute}}
	p := newProbes(func() ([]chains.Silent, error) { return silent, nil }, logr.Discard())
	s := &sender{sent: map[netip.AddrPort]int{}, err: errors.New("unreachable")}
	if !p.round(s) {
		t.Error("silent subflows are not looked at again")
	}
	silent = silent[1:]
	for range 2 * mostProbes {
		p.round(s)
	}
	if s.sent[answers] != 1 || s.sent[mute] != mostProbes {
		t.Errorf("there were probes %v", s.sent)
	}
	if p.round(s) {
		t.Error("what never answers is looked at for ever")
	}
	silent[0].Chain = 2
	if !p.round(s) || s.sent[mute] != mostProbes+1 {
		t.Errorf("under other rules there were probes %v", s.sent)
	}
	silent = nil
	if p.round(s) || len(p.asked) > 0 {
		t.Errorf("without silent subflows it remembers %v", p.asked)
	}
}
