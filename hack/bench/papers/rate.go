// SPDX-License-Identifier: Apache-2.0

package papers

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/internal/lab/traffic"
)

// Rates that are asked for, and round trips at which they must be met.
var (
	askedRates = []int64{5, 20, 50, 200} // Mbit/s
	roundTrips = []time.Duration{0, 5 * time.Millisecond, 40 * time.Millisecond}
)

const (
	// rateLinkMbit is more than the largest rate, so that a limit has something to limit.
	rateLinkMbit = 300
	rateWarmup   = 3 * time.Second
	rateLasts    = 5 * time.Second
	// mostRateTrials keeps the experiment within a quarter of an hour.
	mostRateTrials = 3
	// limitedPath is the second one: the subflow that a rule limits.
	limitedPath = 1
)

// measureRate asks for rates of one subflow of two, and of all, at several round
// trips. The round trip without a delay of ours is about 0.2 ms under load.
func measureRate(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	for _, rtt := range roundTrips {
		if err := ratesAt(ctx, m, "rate.pace.", "pods", rtt); err != nil {
			return fmt.Errorf("pods, %s: %w", rtt, err)
		}
		if rtt == 0 {
			continue // a window is too coarse there
		}
		if err := ratesAt(ctx, m, "rate.window.", "guests", rtt); err != nil {
			return fmt.Errorf("guests, %s: %w", rtt, err)
		}
	}
	pace, window := m.Values("rate.pace.others_kept_pct"), m.Values("rate.window.others_kept_pct")
	if len(pace) == 0 || len(window) == 0 {
		return nil // of a part of the cases there are no worst ones
	}
	m.Add("rate.pace.err_pct_max", slices.Max(m.Values("rate.pace.err_pct")))
	m.Add("rate.window.err_pct_max", slices.Max(m.Values("rate.window.err_pct")))
	m.Add("rate.others_kept_pct_min", min(slices.Min(pace), slices.Min(window)))
	return nil
}

// ratesAt asks for the rates of pods or of guests at a round trip.
func ratesAt(ctx context.Context, m *rig.Measurement, prefix, senders string, rtt time.Duration) error {
	rates := slices.DeleteFunc(slices.Clone(askedRates), func(rate int64) bool {
		return !m.Cases.MatchString(fmt.Sprintf("%s %s %d Mbit/s", senders, rtt, rate))
	})
	if len(rates) == 0 {
		return nil
	}
	return rig.Use(ctx, rig.PairOn(twoPaths(senders, rateLinkMbit, rtt)), func(p *rig.Pair) error {
		if err := p.Set(ctx, rig.Braid); err != nil {
			return err
		}
		trials := min(m.Trials, mostRateTrials)
		before, err := medianRates(ctx, p, trials, nil)
		if err != nil {
			return err
		}
		for _, rate := range rates {
			rig.Say("%s, a round trip of %s, %d Mbit/s; without a limit the other subflow has %.1f", senders, rtt, rate, before[1-limitedPath])
			if err := ask(ctx, m, p, prefix, trials, rate, before); err != nil {
				return fmt.Errorf("%d Mbit/s: %w", rate, err)
			}
		}
		return nil
	})
}

// medianRates are the medians of some transfers: at long round trips one now and
// then loses much in its slow start, with rules and without.
func medianRates(ctx context.Context, p *rig.Pair, transfers int, rules []v1alpha1.PlanRule) (map[int]float64, error) {
	trials := map[int][]float64{}
	for range transfers {
		rates, err := ratesWith(ctx, p, rules)
		if err != nil {
			return nil, err
		}
		for path, rate := range rates {
			trials[path] = append(trials[path], rate)
		}
	}
	medians := map[int]float64{}
	for path, rates := range trials {
		medians[path] = rig.Median(rates)
	}
	return medians, nil
}

// ask limits all subflows, then one.
func ask(ctx context.Context, m *rig.Measurement, p *rig.Pair, prefix string, trials int, rate int64, before map[int]float64) error {
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}}
	limit := rig.LimitTo(rate, v1alpha1.RateLimitAuto)
	all, err := ratesWith(ctx, p, rig.RuleOf(match, limit))
	if err != nil {
		return err
	}
	match.Paths = []v1alpha1.PathName{v1alpha1.PathName(rig.Paths[limitedPath])}
	limited, err := medianRates(ctx, p, trials, rig.RuleOf(match, limit))
	if err != nil {
		return err
	}
	off := func(got float64) float64 { return math.Abs(got-float64(rate)) * 100 / float64(rate) }
	worst := 0.0
	for _, got := range all {
		worst = max(worst, off(got))
	}
	m.Add(prefix+"err_pct", off(limited[limitedPath]))
	m.Add(prefix+"all_subflows.err_pct", worst)
	m.Add(prefix+"others_kept_pct", 100*limited[1-limitedPath]/before[1-limitedPath])
	return nil
}

// ratesWith measures a transfer that has had these rules from its beginning: the
// goodput of each subflow in Mbit/s, by its path.
func ratesWith(ctx context.Context, p *rig.Pair, rules []v1alpha1.PlanRule) (byPath map[int]float64, err error) {
	if err := p.Give(rules); err != nil {
		return nil, err
	}
	t, err := p.Start(ctx, traffic.Options{Duration: rateWarmup + rateLasts + time.Minute})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Stop()) }()
	time.Sleep(rateWarmup)
	rates, err := t.Rates(rateLasts)
	if err != nil {
		return nil, err
	}
	paths, err := p.PathsOf(t)
	if err != nil {
		return nil, err
	}
	byPath = map[int]float64{}
	for end, rate := range rates {
		byPath[paths[end]] += rate
	}
	if len(byPath) != len(p.Spec.Paths) {
		return nil, fmt.Errorf("the subflows use other paths than one each: %v", paths)
	}
	return byPath, nil
}
