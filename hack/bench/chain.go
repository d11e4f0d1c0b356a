// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/hack/bench/baseline"
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
	chainToken   = 0x5eedcafe
	chainPayload = 1000
	// chainWindow is what the stand-in's rate limit writes, unscaled.
	chainWindow = 500

	subtypeDSS  = 2
	subtypePrio = 5
)

func chainSubflow() baseline.Subflow {
	return baseline.Subflow{Local: chainLocal, Remote: chainRemote, Token: chainToken}
}

// The blocks of a chain, in their order: the first n of them are those of a shorter
// one. Braid's rules of the same meaning are in chainRule.
var (
	standinSelectors = []baseline.Selector{
		{Kind: baseline.SelectSubflow}, {Kind: baseline.SelectIPPair},
		{Kind: baseline.SelectConnection}, {Kind: baseline.SelectPacketType, Types: 1 << subtypeDSS},
	}
	standinActions = []baseline.Action{
		{Kind: baseline.ActRateLimit, Parameter: chainWindow}, {Kind: baseline.ActSetBackup, Parameter: 1},
		{Kind: baseline.ActGetSubflow}, {Kind: baseline.ActRecord},
	}
	// windowActions are those that seed 001's own measurement has: the window alone.
	windowActions = []baseline.Action{standinActions[0], standinActions[0], standinActions[0], standinActions[0]}
)

// pacedSuffix marks chains whose subflow has a socket that is paced.
const pacedSuffix = "paced"

// loaded are programs that a measurement loads, to be closed at its end.
type loaded []io.Closer

func (l loaded) close() (err error) {
	for _, one := range l {
		err = errors.Join(err, one.Close())
	}
	return err
}

// addStandin adds a chain of the stand-in to a race.
func (l *loaded) addStandin(r *race, name string, frame []byte, selectors []baseline.Selector, actions []baseline.Action) error {
	chain, err := baseline.New()
	if err != nil {
		return err
	}
	*l = append(*l, chain)
	if err := chain.Set(chainSubflow(), selectors, actions); err != nil {
		return fmt.Errorf("making the chain %s: %w", name, err)
	}
	return l.again(r, contender{name: name, program: chain.Program(), frame: frame})
}

// addRules adds Braid's endpoint half with these rules, on what the endpoint sends.
func (l *loaded) addRules(r *race, name string, frame []byte, rules []v1alpha1.PlanRule) (*half, error) {
	h, err := newHalf(loopback, rules)
	if err != nil {
		return nil, fmt.Errorf("making the chain %s: %w", name, err)
	}
	*l = append(*l, h)
	if err := h.know(chainLocal, chainRemote, chainToken, strings.HasSuffix(name, pacedSuffix)); err != nil {
		return nil, err
	}
	return h, l.again(r, contender{name: name, program: h.from, frame: frame})
}

// prime lets a packet for the endpoint through, so that the limit of what it receives
// is known, whose window goes with what it sends.
func (h *half) prime() error {
	_, _, err := h.to.Test(segmentOf(chainRemote, chainLocal))
	if err != nil {
		return fmt.Errorf("running to_endpoint: %w", err)
	}
	return nil
}

// again adds a contender behind the program that gives packets back what was changed.
func (l *loaded) again(r *race, c contender) error {
	again, err := baseline.NewAgain(c.frame, c.program)
	if err != nil {
		return err
	}
	*l = append(*l, again)
	c.program = again.Program()
	r.add(c)
	return nil
}

// measureChain compares the endpoint half with the stand-in of eMPTCP's design: a
// packet that nothing selects, and chains of 2, 4 and 8 blocks. Each program finds
// the packet as it was, so that each writes what it has to.
func measureChain(_ context.Context, b *bench) (err error) {
	var l loaded
	r := &race{trials: map[string][]float64{}}
	defer func() { err = errors.Join(err, l.close()) }()
	frame := segmentOf(chainLocal, chainRemote)
	halves, err := l.addChains(r, frame)
	if err != nil {
		return err
	}
	if err := r.run(); err != nil {
		return err
	}
	if err := expectHits(halves); err != nil {
		return err
	}
	r.chainFigures(b)
	return nil
}

func (l *loaded) addChains(r *race, frame []byte) (halves map[string]*half, err error) {
	if err := l.addEmpty(r, frame); err != nil {
		return nil, err
	}
	other := segmentOf(chainLocal, netip.AddrPortFrom(chainRemote.Addr(), chainRemote.Port()+1))
	if err := l.addStandin(r, "standin_unselected", other, standinSelectors[:1], standinActions); err != nil {
		return nil, err
	}
	if _, err := l.addRules(r, "unselected", other, chainRule(chainSizes[2])); err != nil {
		return nil, err
	}
	halves = map[string]*half{}
	for _, size := range chainSizes {
		if err := l.addSize(r, frame, size, halves); err != nil {
			return nil, err
		}
	}
	return halves, nil
}

// addEmpty adds the program that the others are measured above.
func (l *loaded) addEmpty(r *race, frame []byte) error {
	empty, err := packettest.NewEmpty()
	if err != nil {
		return fmt.Errorf("loading the empty program: %w", err)
	}
	*l = append(*l, empty)
	return l.again(r, contender{name: emptyName, program: empty, frame: frame})
}

func (l *loaded) addSize(r *race, frame []byte, size chainSize, halves map[string]*half) error {
	name := fmt.Sprint(size.blocks())
	selectors := standinSelectors[:size.selectors]
	if err := errors.Join(
		l.addStandin(r, "standin"+name, frame, selectors, standinActions[:size.actions]),
		l.addStandin(r, "standin"+name+"window", frame, selectors, windowActions[:size.actions]),
	); err != nil {
		return err
	}
	h, err := l.addRules(r, name, frame, chainRule(size))
	if err != nil {
		return err
	}
	halves[name] = h
	paced, err := l.addRules(r, name+pacedSuffix, frame, pacedRule(size))
	if err != nil {
		return err
	}
	halves[name+pacedSuffix] = paced
	return errors.Join(h.prime(), paced.prime())
}

// expectHits is an error when a chain did not act on the packets that ran through it.
func expectHits(halves map[string]*half) error {
	for name, h := range halves {
		if hits, err := h.hits(); err != nil || hits < repeats {
			return fmt.Errorf("the chain %s matched %d packets: %w", name, hits, err)
		}
	}
	return nil
}

func (r *race) chainFigures(b *bench) {
	r.figures(b, emptyName, "chain.empty_")
	r.figures(b, "unselected", "chain.unselected_")
	r.figures(b, "standin_unselected", "chain.standin_unselected_")
	for _, size := range chainSizes {
		name := fmt.Sprint(size.blocks())
		r.figures(b, name, "chain."+name+".")
		r.figures(b, name+pacedSuffix, "chain."+name+".paced_")
		r.figures(b, "standin"+name, "chain.standin"+name+".")
		r.figures(b, "standin"+name+"window", "chain.standin"+name+".window_")
		b.add("chain."+name+".to_standin", "ratio", ratios(r.above(name), r.above("standin"+name), 1))
		b.add("chain."+name+".paced_to_standin", "ratio", ratios(r.above(name+pacedSuffix), r.above("standin"+name), 1))
		b.add("chain."+name+".to_standin_window", "ratio", ratios(r.above(name), r.above("standin"+name+"window"), 1))
	}
}
