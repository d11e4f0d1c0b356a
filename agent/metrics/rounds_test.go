// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// rounds are the counts and sums of the loops.
func rounds(t *testing.T, r *Rounds) map[string]*dto.Histogram {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(r)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "braid_agent_round_duration_seconds" {
		t.Fatalf("there are %v: %v", families, err)
	}
	found := map[string]*dto.Histogram{}
	for _, metric := range families[0].GetMetric() {
		found[metric.GetLabel()[0].GetValue()] = metric.GetHistogram()
	}
	return found
}

func TestEachLoopHasItsRoundsFromTheStart(t *testing.T) {
	for _, loop := range []Loop{LoopNode, LoopPods} {
		if got := rounds(t, NewRounds())[string(loop)]; got == nil || got.GetSampleCount() != 0 {
			t.Errorf("loop %s: %v", loop, got)
		}
	}
}

func TestARoundCountsAlsoWhenItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, failure := NewRounds(), errors.New("no")
		err := r.Measure(t.Context(), LoopPods, func() error {
			time.Sleep(300 * time.Millisecond)
			return failure
		})
		got := rounds(t, r)
		if !errors.Is(err, failure) || got["pods"].GetSampleCount() != 1 || got["pods"].GetSampleSum() != 0.3 || got["node"].GetSampleCount() != 0 {
			t.Errorf("the error is %v, the rounds are %v", err, got)
		}
	})
}

func TestARoundThatTheEndCutsShortDoesNotCount(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := NewRounds()
	err := r.Measure(ctx, LoopNode, func() error {
		cancel()
		return ctx.Err()
	})
	if got := rounds(t, r)["node"]; !errors.Is(err, context.Canceled) || got.GetSampleCount() != 0 {
		t.Errorf("the error is %v, the rounds are %v", err, got)
	}
}
