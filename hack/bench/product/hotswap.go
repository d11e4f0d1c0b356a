// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/traffic"
)

const (
	swaps       = 1000
	swapsLast   = 15 * time.Second
	swapsWarmup = time.Second
	// swapsApart is the time between two changes at least; making one takes longer
	// where the kernel waits for all processors.
	swapsApart = 5 * time.Millisecond
)

// measureHotswap changes the chain of a pod a thousand times during transfers whose
// every byte is compared, and compares their goodput with that of undisturbed ones.
func measureHotswap(ctx context.Context, m *rig.Measurement, p *rig.Pair) error {
	if err := p.Set(ctx, rig.Braid); err != nil {
		return err
	}
	for changes := 0; changes < swaps; {
		undisturbed, _, err := swapped(ctx, p, 0)
		if err != nil {
			return err
		}
		mbit, made, err := swapped(ctx, p, swaps)
		if err != nil {
			return err
		}
		changes += made
		rig.Say("%.1f Mbit/s, with %d changes of the chain %.1f", undisturbed, made, mbit)
		m.Add("hotswap.goodput_ratio", mbit/undisturbed)
	}
	return nil
}

// swapped is the goodput of a transfer in Mbit/s, during as many changes as it has
// time for, and their number.
func swapped(ctx context.Context, p *rig.Pair, most int) (mbit float64, changes int, err error) {
	if err := p.Give(randomRules()); err != nil {
		return 0, 0, err
	}
	t, err := p.Start(ctx, traffic.Options{Duration: swapsWarmup + swapsLast, Warmup: swapsWarmup, Verify: true})
	if err != nil {
		return 0, 0, err
	}
	time.Sleep(swapsWarmup)
	for begun := time.Now(); changes < most && time.Since(begun) < swapsLast; changes++ {
		if err := p.Give(randomRules()); err != nil {
			return 0, 0, t.Why(err)
		}
		time.Sleep(swapsApart)
	}
	result, err := t.EndIntact()
	if err != nil {
		return 0, 0, err
	}
	return result.Mbit, changes, p.Give(nil)
}

// randomRules are some rules that let the transfer be as fast as it is without them.
func randomRules() []v1alpha1.PlanRule {
	yes := true
	matches := []*v1alpha1.Match{
		nil,
		{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionToEndpoint}},
		{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{v1alpha1.PathName(rig.Paths[1])}}},
		{Selectors: v1alpha1.Selectors{PacketTypes: []v1alpha1.PacketType{v1alpha1.PacketDSS, v1alpha1.PacketPureACK}}},
		{Not: &v1alpha1.NestedMatch{Selectors: v1alpha1.Selectors{Backup: &yes}}},
	}
	actions := []v1alpha1.Action{
		{Type: v1alpha1.ActionRecord}, {Type: v1alpha1.ActionReportConnection}, {Type: v1alpha1.ActionReportSubflow},
		{Type: v1alpha1.ActionSuppressAddAddr}, rig.LimitTo(10_000, v1alpha1.RateLimitAuto), rig.LimitTo(10_000, v1alpha1.RateLimitPolice),
	}
	var rules []v1alpha1.PlanRule
	for i := range 1 + rand.IntN(8) {
		rule := rig.RuleOf(matches[rand.IntN(len(matches))], actions[rand.IntN(len(actions))])
		rule[0].Name = fmt.Sprintf("random-%d-%d", i, rand.IntN(100))
		rules = append(rules, rule...)
	}
	return rules
}
