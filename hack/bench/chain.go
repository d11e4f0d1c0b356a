// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"braid.dev/braid/bpf/standin"
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

func chainSubflow() standin.Subflow {
	return standin.Subflow{Local: chainLocal, Remote: chainRemote, Token: chainToken}
}

// The blocks of a chain, in their order: the first n of them are those of a shorter
// one. Braid's rules of the same meaning are in chainRule.
var (
	standinSelectors = []standin.Selector{
		{Kind: standin.SelectSubflow}, {Kind: standin.SelectIPPair},
		{Kind: standin.SelectConnection}, {Kind: standin.SelectPacketType, Types: 1 << subtypeDSS},
	}
	standinActions = []standin.Action{
		{Kind: standin.ActRateLimit, Parameter: chainWindow}, {Kind: standin.ActSetBackup, Parameter: 1},
		{Kind: standin.ActGetSubflow}, {Kind: standin.ActRecord},
	}
	// windowActions are those that seed 001's own measurement has: the window alone.
	windowActions = []standin.Action{standinActions[0], standinActions[0], standinActions[0], standinActions[0]}
)

// loaded are programs that a measurement loads, to be closed at its end.
type loaded []io.Closer

func (l loaded) close() (err error) {
	for _, one := range l {
		err = errors.Join(err, one.Close())
	}
	return err
}

// addStandin adds a chain of the stand-in to a race.
func (l *loaded) addStandin(r *race, name string, frame []byte, selectors []standin.Selector, actions []standin.Action) error {
	chain, err := standin.New()
	if err != nil {
		return err
	}
	*l = append(*l, chain)
	if err := chain.Set(chainSubflow(), selectors, actions); err != nil {
		return fmt.Errorf("making the chain %s: %w", name, err)
	}
	r.add(contender{name: name, program: chain.Program(), frame: frame})
	return nil
}

// measureChain compares the endpoint half with the stand-in of eMPTCP's design: a
// packet that nothing selects, and chains of 2, 4 and 8 blocks.
func measureChain(_ context.Context, b *bench) (err error) {
	frame := segmentOf(chainLocal, chainRemote, chainPayload)
	r, err := newRace(frame)
	if err != nil {
		return err
	}
	var l loaded
	defer func() { err = errors.Join(err, l.close(), r.close()) }()
	if err := l.addStandins(r, frame); err != nil {
		return err
	}
	if err := r.run(); err != nil {
		return err
	}
	r.figures(b, emptyName, "chain.empty_")
	for _, size := range chainSizes {
		name := fmt.Sprintf("standin%d", size.blocks())
		r.figures(b, name, "chain."+name+".")
		r.figures(b, name+"window", "chain."+name+".window_")
	}
	r.figures(b, "standin_unselected", "chain.standin_unselected_")
	return nil
}

func (l *loaded) addStandins(r *race, frame []byte) error {
	none := []standin.Selector{{Kind: standin.SelectSubflow}}
	other := segmentOf(chainLocal, netip.AddrPortFrom(chainRemote.Addr(), chainRemote.Port()+1), chainPayload)
	if err := l.addStandin(r, "standin_unselected", other, none, standinActions); err != nil {
		return err
	}
	for _, size := range chainSizes {
		name := fmt.Sprintf("standin%d", size.blocks())
		selectors := standinSelectors[:size.selectors]
		if err := errors.Join(
			l.addStandin(r, name, frame, selectors, standinActions[:size.actions]),
			l.addStandin(r, name+"window", frame, selectors, windowActions[:size.actions]),
		); err != nil {
			return err
		}
	}
	return nil
}
