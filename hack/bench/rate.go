// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
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
	// mostRateTrials keeps the part within a quarter of an hour.
	mostRateTrials = 3
	// limitedPath is the second one: the subflow that a rule limits.
	limitedPath = 1
)

// measureRate asks for rates of one subflow of two, and of all, at several round
// trips. The round trip without a delay of ours is about 0.2 ms under load.
func measureRate(ctx context.Context, b *bench) error {
	var pace, window rateResults
	for _, rtt := range roundTrips {
		if err := pace.at(ctx, b, "pods", rtt); err != nil {
			return fmt.Errorf("pods, %s: %w", rtt, err)
		}
		if rtt == 0 {
			continue // a window is too coarse there
		}
		if err := window.at(ctx, b, "guests", rtt); err != nil {
			return fmt.Errorf("guests, %s: %w", rtt, err)
		}
	}
	if len(pace.errors) == 0 || len(window.errors) == 0 {
		return nil // of a part of the cases there are no worst ones
	}
	b.add("rate.pace.err_pct_max", "%", []float64{slices.Max(pace.errors)})
	b.add("rate.pace.err_pct", "%", pace.errors)
	b.add("rate.pace.all_subflows.err_pct", "%", pace.allErrors)
	b.add("rate.pace.others_kept_pct", "%", pace.othersKept)
	b.add("rate.window.err_pct_max", "%", []float64{slices.Max(window.errors)})
	b.add("rate.window.err_pct", "%", window.errors)
	b.add("rate.window.all_subflows.err_pct", "%", window.allErrors)
	b.add("rate.window.others_kept_pct", "%", window.othersKept)
	b.add("rate.others_kept_pct_min", "%", []float64{min(slices.Min(pace.othersKept), slices.Min(window.othersKept))})
	return nil
}

// rateResults are those of all rates and round trips.
type rateResults struct {
	errors     []float64 // of one limited subflow, %
	allErrors  []float64 // of the worst of them, when all are limited
	othersKept []float64 // of the goodput that the other subflow had before
}

// rateCase names a case, for --case and for what is printed.
func rateCase(senders string, rtt time.Duration, rate int64) string {
	return fmt.Sprintf("%s %s %d Mbit/s", senders, rtt, rate)
}

// ratesAt are those of the cases at a round trip that are to be measured.
func (b *bench) ratesAt(senders string, rtt time.Duration) []int64 {
	return slices.DeleteFunc(slices.Clone(askedRates), func(rate int64) bool {
		return !b.cases.MatchString(rateCase(senders, rtt, rate))
	})
}

// at asks for the rates of pods or of guests at a round trip.
func (results *rateResults) at(ctx context.Context, b *bench, senders string, rtt time.Duration) (err error) {
	rates := b.ratesAt(senders, rtt)
	if len(rates) == 0 {
		return nil
	}
	r, err := newRuled(ctx, rateSpec(senders, rtt))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	trials := min(b.trials, mostRateTrials)
	before, err := r.medianRates(ctx, trials, nil)
	if err != nil {
		return err
	}
	for _, rate := range rates {
		if err := results.ask(ctx, r, trials, rate, before); err != nil {
			return fmt.Errorf("%d Mbit/s: %w", rate, err)
		}
		last := len(results.errors) - 1
		fmt.Printf("%s: error %.1f %%, the other subflow keeps %.1f %% of %.1f Mbit/s; both limited: error %.1f %%\n",
			rateCase(senders, rtt, rate), results.errors[last], results.othersKept[last], sumBut(before, limitedPath), results.allErrors[last])
	}
	return nil
}

func rateSpec(senders string, rtt time.Duration) network.Spec {
	spec := network.Spec{Paths: pathNames[:2], LinkMbit: rateLinkMbit, PathDelays: map[string]time.Duration{}}
	for _, path := range spec.Paths {
		spec.PathDelays[path] = rtt / 2
	}
	if senders == "guests" {
		spec.GuestsPerNode = 1
	} else {
		spec.PodsPerNode = 1
	}
	return spec
}

// medianRates are the medians of some transfers: at long round trips one now and
// then loses much in its slow start, with rules and without.
func (r *ruled) medianRates(ctx context.Context, transfers int, rules []v1alpha1.PlanRule) (map[int]float64, error) {
	trials := map[int][]float64{}
	for range transfers {
		rates, err := r.ratesWith(ctx, rules)
		if err != nil {
			return nil, err
		}
		for path, rate := range rates {
			trials[path] = append(trials[path], rate)
		}
	}
	medians := map[int]float64{}
	for path, rates := range trials {
		medians[path] = median(rates)
	}
	return medians, nil
}

// ask limits one subflow, then all.
func (results *rateResults) ask(ctx context.Context, r *ruled, trials int, rate int64, before map[int]float64) error {
	match := &v1alpha1.Match{Selectors: v1alpha1.Selectors{Direction: v1alpha1.DirectionFromEndpoint}}
	limit := limitTo(rate, v1alpha1.RateLimitAuto)
	all, err := r.ratesWith(ctx, ruleOf(match, limit))
	if err != nil {
		return err
	}
	match.Paths = []v1alpha1.PathName{v1alpha1.PathName(pathNames[limitedPath])}
	limited, err := r.medianRates(ctx, trials, ruleOf(match, limit))
	if err != nil {
		return err
	}
	off := func(got float64) float64 { return math.Abs(got-float64(rate)) * 100 / float64(rate) }
	results.errors = append(results.errors, off(limited[limitedPath]))
	results.othersKept = append(results.othersKept, 100*sumBut(limited, limitedPath)/sumBut(before, limitedPath))
	worst := 0.0
	for _, got := range all {
		worst = max(worst, off(got))
	}
	results.allErrors = append(results.allErrors, worst)
	return nil
}

// ratesWith measures a transfer that has had these rules from its beginning: the
// goodput of each subflow in Mbit/s, by its path.
func (r *ruled) ratesWith(ctx context.Context, rules []v1alpha1.PlanRule) (byPath map[int]float64, err error) {
	if err := r.give(rules); err != nil {
		return nil, err
	}
	t, err := r.begin(ctx, traffic.Options{Duration: rateWarmup + rateLasts + time.Minute})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.stop()) }()
	time.Sleep(rateWarmup)
	rates, err := t.rates(rateLasts)
	if err != nil {
		return nil, err
	}
	paths, err := r.paths(t)
	if err != nil {
		return nil, err
	}
	byPath = map[int]float64{}
	for end, rate := range rates {
		byPath[paths[end]] += rate
	}
	if len(byPath) != r.links {
		return nil, fmt.Errorf("the subflows use other paths than one each: %v", paths)
	}
	return byPath, nil
}

// sumBut adds the rates of all paths but one.
func sumBut(rates map[int]float64, one int) (sum float64) {
	for path, rate := range rates {
		if path != one {
			sum += rate
		}
	}
	return sum
}
