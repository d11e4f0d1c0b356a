// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/cilium/ebpf"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/hack/bench/rig"
)

// chainSize is a chain as seed 001 counts them: selectors and actors together.
type chainSize struct{ selectors, actions int }

func (s chainSize) blocks() int { return s.selectors + s.actions }

// chainSizes are those of figure 5 of "eMPTCP: A Framework to Fully Extend Multipath
// TCP".
var chainSizes = []chainSize{{1, 1}, {1, 3}, {4, 4}}

var (
	chainLocal  = netip.MustParseAddrPort("10.244.1.2:40000")
	chainRemote = netip.MustParseAddrPort("10.244.2.2:5001")
)

const (
	loopback   = 1 // the interface index of packets of BPF_PROG_TEST_RUN
	chainToken = 0x5eedcafe
	// chainWindow is what the baseline's rate limit writes, unscaled.
	chainWindow = 500

	subtypeDSS = 2
)

func chainSubflow() baseline.Subflow {
	return baseline.Subflow{Local: chainLocal, Remote: chainRemote, Token: chainToken}
}

// The blocks of a chain, in their order: the first n of them are those of a shorter
// one. Braid's rules of the same meaning are in chainRule.
var (
	baselineSelectors = []baseline.Selector{
		{Kind: baseline.SelectSubflow}, {Kind: baseline.SelectIPPair},
		{Kind: baseline.SelectConnection}, {Kind: baseline.SelectPacketType, Types: 1 << subtypeDSS},
	}
	baselineActions = []baseline.Action{
		{Kind: baseline.ActRateLimit, Parameter: chainWindow}, {Kind: baseline.ActSetBackup, Parameter: 1},
		{Kind: baseline.ActGetSubflow}, {Kind: baseline.ActRecord},
	}
	// windowActions are those that seed 001's own measurement has: the window alone.
	windowActions = []baseline.Action{baselineActions[0], baselineActions[0], baselineActions[0], baselineActions[0]}
)

const (
	// pacedSuffix marks chains whose subflow has a socket that is paced.
	pacedSuffix = "paced"
	// repeatedSuffix marks those that see the same segment again and again, as if TCP
	// repeated it.
	repeatedSuffix = "repeated"
)

// chainRace measures chains on a segment of a subflow.
type chainRace struct {
	rig.Race
	segment []byte
}

// newChainRace has the empty program, above which the others are measured.
func newChainRace(context.Context) (*chainRace, error) {
	r := &chainRace{segment: rig.Segment(chainLocal, chainRemote, rig.MPTCPOptions)}
	empty, err := r.LoadEmpty()
	if err == nil {
		err = r.add(rig.Empty, empty, r.segment)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// add adds a contender behind the program that gives packets back what was changed.
func (r *chainRace) add(name string, program *ebpf.Program, packet []byte) error {
	step := uint32(rig.SegmentBytes)
	if strings.HasSuffix(name, repeatedSuffix) {
		step = 0
	}
	again, err := baseline.NewAgain(packet, program, step)
	if err != nil {
		return err
	}
	r.Own(again)
	r.Contenders = append(r.Contenders, rig.Contender{Name: name, Program: again.Program(), Packet: packet})
	return nil
}

// addBaseline adds a chain of the baseline.
func (r *chainRace) addBaseline(name string, packet []byte, selectors []baseline.Selector, actions []baseline.Action) error {
	chain, err := baseline.New()
	if err != nil {
		return err
	}
	r.Own(chain)
	if err := chain.Set(chainSubflow(), selectors, actions); err != nil {
		return fmt.Errorf("making the chain %s: %w", name, err)
	}
	return r.add(name, chain.Program(), packet)
}

// addRules adds Braid's endpoint half with these rules, on what the endpoint sends.
func (r *chainRace) addRules(name string, packet []byte, rules []v1alpha1.PlanRule) (*half, error) {
	h, err := newHalf(loopback, rules)
	if err != nil {
		return nil, fmt.Errorf("making the chain %s: %w", name, err)
	}
	r.Own(h)
	if err := h.know(chainLocal, chainRemote, chainToken, strings.HasSuffix(name, pacedSuffix)); err != nil {
		return nil, err
	}
	// A packet for the endpoint makes the limit of what it receives known, whose window
	// goes with what it sends.
	if _, _, err := h.to.Test(rig.Segment(chainRemote, chainLocal, rig.MPTCPOptions)); err != nil {
		return nil, fmt.Errorf("running to_endpoint: %w", err)
	}
	return h, r.add(name, h.from, packet)
}

// measureChain compares the endpoint half with the baseline of eMPTCP's design: a
// packet that nothing selects, and chains of 2, 4 and 8 blocks. Each program finds
// the packet as it was, so that each writes what it has to.
func measureChain(_ context.Context, m *rig.Measurement, r *chainRace) error {
	other := rig.Segment(chainLocal, netip.AddrPortFrom(chainRemote.Addr(), chainRemote.Port()+1), rig.MPTCPOptions)
	if err := r.addBaseline("baseline_unselected", other, baselineSelectors[:1], baselineActions); err != nil {
		return err
	}
	if _, err := r.addRules("unselected", other, chainRule(chainSizes[2])); err != nil {
		return err
	}
	halves := map[string]*half{}
	for _, size := range chainSizes {
		if err := r.addSize(size, halves); err != nil {
			return err
		}
	}
	if err := r.Run(); err != nil {
		return err
	}
	for name, h := range halves {
		if hits, err := h.hits(); err != nil || hits < rig.Repeats {
			return fmt.Errorf("the chain %s matched %d packets: %w", name, hits, err)
		}
	}
	r.chainFigures(m)
	return nil
}

func (r *chainRace) addSize(size chainSize, halves map[string]*half) (err error) {
	name := fmt.Sprint(size.blocks())
	selectors := baselineSelectors[:size.selectors]
	if err := errors.Join(
		r.addBaseline("baseline"+name, r.segment, selectors, baselineActions[:size.actions]),
		r.addBaseline("baseline"+name+"window", r.segment, selectors, windowActions[:size.actions]),
	); err != nil {
		return err
	}
	if halves[name], err = r.addRules(name, r.segment, chainRule(size)); err != nil {
		return err
	}
	if halves[name+pacedSuffix], err = r.addRules(name+pacedSuffix, r.segment, pacedRule(size)); err != nil {
		return err
	}
	halves[name+repeatedSuffix], err = r.addRules(name+repeatedSuffix, r.segment, chainRule(size))
	return err
}

func (r *chainRace) chainFigures(m *rig.Measurement) {
	for _, name := range []string{rig.Empty, "unselected", "baseline_unselected"} {
		r.Figures(m, name, "chain."+name+"_")
	}
	for _, size := range chainSizes {
		name := fmt.Sprint(size.blocks())
		r.Figures(m, name, "chain."+name+".")
		r.Figures(m, name+pacedSuffix, "chain."+name+".paced_")
		r.Figures(m, name+repeatedSuffix, "chain."+name+".repeated_")
		r.Figures(m, "baseline"+name, "chain.baseline"+name+".")
		r.Figures(m, "baseline"+name+"window", "chain.baseline"+name+".window_")
		m.Add("chain."+name+".to_baseline", rig.Ratios(r.Above(name), r.Above("baseline"+name))...)
		m.Add("chain."+name+".paced_to_baseline", rig.Ratios(r.Above(name+pacedSuffix), r.Above("baseline"+name))...)
		m.Add("chain."+name+".to_baseline_window", rig.Ratios(r.Above(name), r.Above("baseline"+name+"window"))...)
	}
}
