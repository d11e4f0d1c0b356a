// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/hack/bench/rig"
)

// measureDesigns compares ways to run the same chains: a tail call for each block, a
// program made for the chain, and rules as data, whose selectors are remembered in the
// subflow's record or looked at for each packet. docs/chains.md has the reasoning.
//
// Each design runs on packets that have their window and checksum back at each
// repeat, so that one that writes only what changes has to write too.
func measureDesigns(_ context.Context, m *rig.Measurement, r *chainRace) error {
	for _, size := range chainSizes {
		if err := r.addDesigns(size); err != nil {
			return fmt.Errorf("a chain of %d: %w", size.blocks(), err)
		}
	}
	for name, rules := range singleRules() {
		if _, err := r.addRules(name, r.segment, rules); err != nil {
			return err
		}
	}
	if err := r.Run(); err != nil {
		return err
	}
	for _, c := range r.Contenders {
		r.Figures(m, c.Name, "designs."+c.Name+"_")
	}
	return nil
}

func (r *chainRace) addDesigns(size chainSize) error {
	straight, err := baseline.NewStraight(chainSubflow(), size.selectors, size.actions, 1<<subtypeDSS, chainWindow)
	if err != nil {
		return err
	}
	r.Own(straight)
	name := func(design string) string { return fmt.Sprintf("%s.chain%d", design, size.blocks()) }
	if err := errors.Join(
		r.addBaseline(name("tail_calls"), r.segment, baselineSelectors[:size.selectors], baselineActions[:size.actions]),
		r.add(name("straight"), straight.Program(), r.segment),
	); err != nil {
		return err
	}
	actions := chainActions(size.actions)
	_, fixedErr := r.addRules(name("remembered"), r.segment, rig.RuleOf(fixedMatch(size.selectors), actions...))
	_, dynamicErr := r.addRules(name("each_packet"), r.segment, rig.RuleOf(dynamicMatch(size.selectors), actions...))
	return errors.Join(fixedErr, dynamicErr)
}

// fixedMatch has selectors that cannot change within a subflow.
func fixedMatch(selectors int) *v1alpha1.Match {
	match := chainRule(chainSize{1, 1})[0].Match
	if selectors > 1 {
		match.AddressPair = []v1alpha1.IPAddress{match.Subflow.SourceAddress, match.Subflow.DestinationAddress}
		match.Token = fmt.Sprintf("0x%08x", chainToken)
		match.Destination = &v1alpha1.Side{CIDR: v1alpha1.CIDR("10.244.0.0/16")}
	}
	return match
}

// dynamicMatch has selectors that must be looked at for each packet.
func dynamicMatch(selectors int) *v1alpha1.Match {
	no := false
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketDSS}}}
	if selectors > 1 {
		match.Backup = &no
		match.Sent = &v1alpha1.SentRanges{Subflow: &v1alpha1.ByteRange{From: resource.NewQuantity(0, resource.DecimalSI)}}
		match.Sequence = &v1alpha1.SequenceRanges{Subflow: &v1alpha1.ByteRange{From: resource.NewQuantity(0, resource.DecimalSI)}}
	}
	return match
}

// singleRules have one selector that is remembered and one action.
func singleRules() map[string][]v1alpha1.PlanRule {
	rules := map[string][]v1alpha1.PlanRule{
		"police": rig.RuleOf(fixedMatch(1), rig.LimitTo(1_000_000, v1alpha1.RateLimitPolice)),
	}
	for i, name := range []string{"window", "set_backup", "report_subflow", "record"} {
		rules[name] = rig.RuleOf(fixedMatch(1), chainActions(4)[i])
	}
	return rules
}
