// SPDX-License-Identifier: Apache-2.0

// Package rig is what the experiments of the bench have in common: the networks and
// labs on which they run, transfers, packet programs in turns, and the figures.
package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"path"
	"regexp"
	"slices"
)

// Unit is a pattern of names of figures, as of path.Match, and their unit.
type Unit [2]string

// Info is what the table says of an experiment.
type Info struct {
	Name string
	// Measures says what it measures, in a line.
	Measures string
	// Figures are all that it may give. The first pattern that matches decides.
	Figures []Unit
}

// Experiment measures figures that belong together, on a setup of its own.
type Experiment[S io.Closer] struct {
	Info
	// Setup makes what the experiment runs on. It is closed at the end.
	Setup func(context.Context) (S, error)
	Run   func(context.Context, *Measurement, S) error
}

// Measurer is an experiment with any setup.
type Measurer interface {
	About() Info
	Measure(context.Context, Options) (map[string]Figure, error)
}

// About is what the table says of it.
func (e Experiment[S]) About() Info { return e.Info }

// Options are what a user may choose.
type Options struct {
	// Trials is how often each thing is measured.
	Trials int
	// Cases match those to be measured, in experiments that have cases.
	Cases *regexp.Regexp
}

// Measure runs the experiment and returns its figures by name. The ones of an
// experiment that failed are lost.
func (e Experiment[S]) Measure(ctx context.Context, options Options) (map[string]Figure, error) {
	m := NewMeasurement(options, e.Figures)
	err := Use(ctx, e.Setup, func(setup S) error { return e.Run(ctx, m, setup) })
	if err := errors.Join(err, m.undeclared); err != nil {
		return nil, fmt.Errorf("measuring %s: %w", e.Name, err)
	}
	return m.figures(), nil
}

// Use makes a setup, runs something on it, and closes it.
func Use[S io.Closer](ctx context.Context, setup func(context.Context) (S, error), run func(S) error) error {
	made, err := setup(ctx)
	if err != nil {
		return err
	}
	return errors.Join(run(made), made.Close())
}

// Nothing is the setup of experiments that make their own for each case.
type Nothing struct{}

// Close does nothing.
func (Nothing) Close() error { return nil }

// NoSetup is for experiments that make their own for each case.
func NoSetup(context.Context) (Nothing, error) { return Nothing{}, nil }

// Measurement collects what the trials of one experiment measure.
type Measurement struct {
	Options

	declared   []Unit
	values     map[string][]float64
	shares     map[string]float64 // of figures that are quantiles
	undeclared error
}

// NewMeasurement has no values yet. Figures have to be among the declared ones.
func NewMeasurement(options Options, declared []Unit) *Measurement {
	return &Measurement{Options: options, declared: declared, values: map[string][]float64{}, shares: map[string]float64{}}
}

// Add notes values of a figure, which is the median of all. A single value is shown.
func (m *Measurement) Add(name string, values ...float64) {
	unit, found := m.unit(name)
	if !found {
		m.undeclared = errors.Join(m.undeclared, fmt.Errorf("the experiment does not declare the figure %s", name))
	}
	m.values[name] = append(m.values[name], values...)
	if len(values) == 1 {
		fmt.Printf("%s %.4g %s\n", name, values[0], unit)
	}
}

// AddQuantiles notes the median and the 99th percentile of times in ms, with the
// least and the longest.
func (m *Measurement) AddQuantiles(name string, times []float64) {
	for suffix, share := range map[string]float64{"_p50_ms": 0.5, "_p99_ms": 0.99} {
		m.Add(name+suffix, times...)
		m.shares[name+suffix] = share
	}
}

// Undeclared are the figures noted that the experiment does not declare, as an error.
func (m *Measurement) Undeclared() error { return m.undeclared }

// Values of a figure so far.
func (m *Measurement) Values(name string) []float64 { return m.values[name] }

// Last is the value of a figure that was noted last.
func (m *Measurement) Last(name string) float64 { return m.values[name][len(m.values[name])-1] }

func (m *Measurement) unit(name string) (unit string, found bool) {
	for _, declared := range m.declared {
		if matches, err := path.Match(declared[0], name); matches && err == nil {
			return declared[1], true
		}
	}
	return "", false
}

func (m *Measurement) figures() map[string]Figure {
	figures := map[string]Figure{}
	for name, values := range m.values {
		if len(values) == 0 {
			continue
		}
		unit, _ := m.unit(name)
		value := Median(values)
		if share, is := m.shares[name]; is {
			value = Quantile(values, share)
		}
		figures[name] = Figure{Value: round(value), Unit: unit, Min: round(slices.Min(values)), Max: round(slices.Max(values)), N: len(values)}
	}
	return figures
}

// Shuffled are all elements, in another order each time: what is compared is measured
// in turns.
func Shuffled[T any](all []T) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, i := range rand.Perm(len(all)) {
			if !yield(all[i]) {
				return
			}
		}
	}
}

// Say tells of progress.
func Say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }
