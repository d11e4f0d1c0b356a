// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
)

// closed counts how often it is closed.
type closed struct{ times int }

func (c *closed) Close() error {
	c.times++
	return nil
}

// experiment is one with a setup, and with what it adds.
func experiment(setup *closed, run func(*Measurement) error) Measurer {
	return Experiment[*closed]{
		Info:  Info{Name: "one", Measures: "nothing", Figures: []Unit{{"one.*_ms", "ms"}, {"one.*", "%"}}},
		Setup: func(context.Context) (*closed, error) { return setup, nil },
		Run:   func(_ context.Context, m *Measurement, _ *closed) error { return run(m) },
	}
}

func TestFiguresAreMediansOrQuantilesWithTheUnitOfTheFirstPattern(t *testing.T) {
	setup := &closed{}
	got, err := experiment(setup, func(m *Measurement) error {
		for _, value := range []float64{9, 1, 3, 5} {
			m.Add("one.a_ms", value)
		}
		m.Add("one.b", 1, 2, 6)
		m.AddQuantiles("one.c", []float64{4, 2, 3, 1})
		return nil
	}).Measure(t.Context(), Options{Trials: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Figure{
		"one.a_ms":     {Value: 4, Unit: "ms", Min: 1, Max: 9, N: 4},
		"one.b":        {Value: 2, Unit: "%", Min: 1, Max: 6, N: 3},
		"one.c_p50_ms": {Value: 2, Unit: "ms", Min: 1, Max: 4, N: 4},
		"one.c_p99_ms": {Value: 4, Unit: "ms", Min: 1, Max: 4, N: 4},
	}
	if !maps.Equal(got, want) || setup.times != 1 {
		t.Errorf("the figures are %v instead of %v, and the setup was closed %d times", got, want, setup.times)
	}
}

func TestAnExperimentFailsWithItsNameAndClosesItsSetup(t *testing.T) {
	for name, run := range map[string]func(*Measurement) error{
		"does not declare the figure two.a": func(m *Measurement) error { m.Add("two.a", 1); return nil },
		"the network is gone":               func(*Measurement) error { return errors.New("the network is gone") },
	} {
		setup := &closed{}
		figures, err := experiment(setup, run).Measure(t.Context(), Options{})
		if err == nil || !strings.HasPrefix(err.Error(), "measuring one: ") || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error is %v", name, err)
		}
		if figures != nil || setup.times != 1 {
			t.Errorf("%s: figures %v, closed %d times", name, figures, setup.times)
		}
	}
}
