// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/bpf/program"
)

const (
	// MaxInstructions is how many instructions the verifier may follow in a program.
	// The header's own search for an option and its insertion take 20,000 of them.
	MaxInstructions = 50000
	// MaxCost is what a program may take for a packet, in the median.
	MaxCost = 2 * time.Microsecond

	trialRuns = 101
	// trialRounds are made while a program seems too slow: the node may be busy.
	trialRounds = 3
)

// trial runs programs on sample packets, apart from all traffic.
type trial struct {
	objects program.TrialObjects
}

func newTrial() (*trial, error) {
	t := &trial{}
	if err := program.LoadTrialObjects(&t.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the trial of programs: %w", err)
	}
	return t, nil
}

func (t *trial) close() error { return t.objects.Close() }

// cost is what the program takes for the packet that takes it longest.
func (t *trial) cost(ctx context.Context, tried *ebpf.Program) (time.Duration, error) {
	if err := t.objects.Trials.Put(uint32(0), program.TrialTrial{Blocks: 1}); err != nil {
		return 0, fmt.Errorf("preparing the trial of a program: %w", err)
	}
	worst := time.Duration(0)
	for _, sample := range samples() {
		least := time.Duration(-1)
		for round := 0; round < trialRounds && (least < 0 || least > MaxCost); round++ {
			took, err := t.compare(ctx, tried, sample)
			if err != nil {
				return 0, err
			}
			if least < 0 || took < least {
				least = took
			}
		}
		worst = max(worst, least)
	}
	return worst, nil
}

// compare measures a run with the program and one without.
func (t *trial) compare(ctx context.Context, program *ebpf.Program, sample []byte) (time.Duration, error) {
	without, err := t.median(ctx, sample)
	if err != nil {
		return 0, err
	}
	if err := t.objects.CustomBlocks.Put(uint32(0), program); err != nil {
		return 0, fmt.Errorf("calling the program for a trial: %w", err)
	}
	with, err := t.median(ctx, sample)
	if err != nil {
		return 0, err
	}
	if err := t.objects.CustomBlocks.Delete(uint32(0)); err != nil {
		return 0, fmt.Errorf("ending the trial of a program: %w", err)
	}
	return max(with-without, 0), nil
}

func (t *trial) median(ctx context.Context, sample []byte) (time.Duration, error) {
	took := make([]time.Duration, trialRuns)
	for i := range took {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		var err error
		if _, took[i], err = t.objects.Trial.Benchmark(sample, 1, nil); err != nil {
			return 0, fmt.Errorf("running a program for a trial: %w", err)
		}
	}
	slices.Sort(took)
	return took[trialRuns/2], nil
}
