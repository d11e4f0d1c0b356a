// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"braid.dev/braid/bpf/standin"
)

// measureDesigns compares ways to run the same chains: a tail call for each block, a
// program made for the chain, and rules as data with and without what a subflow's
// record remembers of them. docs/chains.md has the reasoning.
//
// Each design runs on packets that have their window and checksum back at each
// repeat, so that one that writes only what changes has to write too.
func measureDesigns(_ context.Context, b *bench) (err error) {
	frame := segmentOf(chainLocal, chainRemote, chainPayload)
	r, err := newRace(frame)
	if err != nil {
		return err
	}
	var l loaded
	defer func() { err = errors.Join(err, l.close(), r.close()) }()
	if err := l.again(r, contender{name: "again", program: r.empty.Empty, frame: frame}); err != nil {
		return err
	}
	for _, size := range chainSizes {
		if err := l.addDesigns(r, frame, size); err != nil {
			return fmt.Errorf("a chain of %d: %w", size.blocks(), err)
		}
	}
	if err := r.run(); err != nil {
		return err
	}
	r.figures(b, "again", "designs.empty_")
	for _, c := range r.contenders[2:] {
		b.add("designs."+c.name+"_above_empty_ns", "ns/packet", r.above(c.name))
	}
	return nil
}

// again adds a contender behind the program that gives packets back what was changed.
func (l *loaded) again(r *race, c contender) error {
	again, err := standin.NewAgain(c.frame, c.program)
	if err != nil {
		return err
	}
	*l = append(*l, again)
	c.program = again.Program()
	r.add(c)
	return nil
}

func (l *loaded) addDesigns(r *race, frame []byte, size chainSize) error {
	chain, err := standin.New()
	if err != nil {
		return err
	}
	*l = append(*l, chain)
	if err := chain.Set(chainSubflow(), standinSelectors[:size.selectors], standinActions[:size.actions]); err != nil {
		return err
	}
	straight, err := standin.NewStraight(chainSubflow(), size.selectors, size.actions, 1<<subtypeDSS, chainWindow)
	if err != nil {
		return err
	}
	*l = append(*l, straight)
	name := func(design string) string { return fmt.Sprintf("%s.chain%d", design, size.blocks()) }
	return errors.Join(
		l.again(r, contender{name: name("tail_calls"), program: chain.Program(), frame: frame, before: "again"}),
		l.again(r, contender{name: name("straight"), program: straight.Program(), frame: frame, before: "again"}),
	)
}
