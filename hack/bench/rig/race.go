// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/packettest"
)

// Contender is a program and the packet that it runs on.
type Contender struct {
	Name    string
	Program *ebpf.Program
	Packet  []byte
	// Prepare, if any, is called before each trial.
	Prepare func() error
}

// Race measures programs by BPF_PROG_TEST_RUN in turns, so that what disturbs the
// machine disturbs all of them. Closing it closes what was loaded for it.
type Race struct {
	Closers
	Contenders []Contender
	trials     map[string][]float64 // ns a packet
}

const (
	// Repeats make the time of one packet measurable.
	Repeats = 200_000
	// raceTrials are many, because each takes milliseconds only.
	raceTrials = 15
	// Empty is the name of the program that others are measured above.
	Empty = "empty"
)

// Closers are closed together.
type Closers []io.Closer

// Close closes them.
func (c Closers) Close() (err error) {
	for _, one := range c {
		err = errors.Join(err, one.Close())
	}
	return err
}

// Own has something closed with the others.
func (c *Closers) Own(one io.Closer) { *c = append(*c, one) }

// LoadEmpty loads the empty program.
func (c *Closers) LoadEmpty() (*ebpf.Program, error) {
	empty, err := packettest.NewEmpty()
	if err != nil {
		return nil, err
	}
	c.Own(empty)
	return empty, nil
}

// Run measures everything raceTrials times, after a turn that is not counted.
func (r *Race) Run() error {
	r.trials = map[string][]float64{}
	for trial := range raceTrials + 1 {
		for _, c := range r.Contenders {
			each, err := c.run()
			if err != nil {
				return fmt.Errorf("running %s: %w", c.Name, err)
			}
			if trial > 0 {
				r.trials[c.Name] = append(r.trials[c.Name], each)
			}
		}
	}
	return nil
}

func (c *Contender) run() (nanoseconds float64, err error) {
	if c.Prepare != nil {
		if err := c.Prepare(); err != nil {
			return 0, err
		}
	}
	_, each, err := c.Program.Benchmark(c.Packet, Repeats, nil)
	return float64(each.Nanoseconds()), err
}

// Above is what a contender costs above the empty program, trial by trial.
func (r *Race) Above(name string) (costs []float64) {
	for trial, cost := range r.trials[name] {
		costs = append(costs, cost-r.trials[Empty][trial])
	}
	return costs
}

// Figures notes a contender's time, and what it costs above an empty program.
func (r *Race) Figures(m *Measurement, name, figure string) {
	m.Add(figure+"ns", r.trials[name]...)
	if name != Empty {
		m.Add(figure+"above_empty_ns", r.Above(name)...)
	}
}
