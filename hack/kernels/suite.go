// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"braid.dev/braid/hack/kernels/job"
)

// test runs on one kernel what its log does not hold yet. A guest that stops in the
// middle of a run is followed by another one for the rest.
func test(ctx context.Context, m *machine, k kernel, runs []job.Run, chosen []capability, o options) (result, error) {
	log, err := os.OpenFile(filepath.Join(o.logs, k.suite+".log"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return result{}, fmt.Errorf("keeping the guest's output: %w", err)
	}
	defer log.Close()
	parser := newParser(k.suite)
	if err := eachLine(log, func(line string) error { parser.line(line); return nil }); err != nil {
		return result{}, err
	}
	parser.result.keep(k.release, runs)
	wanted := runsOf(runs, chosen)
	if o.again {
		parser.result.forget(wanted)
	}
	for {
		rest := slices.DeleteFunc(slices.Clone(wanted), parser.result.has)
		if len(rest) == 0 {
			return parser.result, nil
		}
		if err := boot(ctx, m, k, rest, parser, log); err != nil {
			return parser.result, err
		}
	}
}

// boot boots a guest for these runs.
func boot(ctx context.Context, m *machine, k kernel, runs []job.Run, p *parser, log *os.File) error {
	if m.accelerator == "auto" {
		if err := m.choose(ctx, k); err != nil {
			return err
		}
	}
	say("booting the kernel of %s (%s)", k.suite, m.accelerator)
	out := teeTo(log, p)
	if _, err := fmt.Fprintf(out, "%s%s\n", job.Booting, m.accelerator); err != nil {
		return fmt.Errorf("keeping the guest's output: %w", err)
	}
	err := m.run(ctx, k, job.Job{Modules: guestModules, Failed: p.result.failed(), Runs: runs}, out)
	if err != nil && (ctx.Err() != nil || errors.Is(err, errNoBoot)) {
		return err
	}
	if err != nil {
		say("the guest stopped: %v", err)
	}
	if !p.result.has(runs[0]) {
		return fmt.Errorf("the guest began nothing; its console is in %s", m.console(k))
	}
	return nil
}

// runsOf are the runs of these lines.
func runsOf(runs []job.Run, lines []capability) (chosen []job.Run) {
	for _, run := range runs {
		if slices.ContainsFunc(lines, func(c capability) bool { return c.name == run.Name }) {
			chosen = append(chosen, run)
		}
	}
	return chosen
}

// keep forgets what another kernel, or other tests than those of runs, have said, and
// what has not ended.
func (r *result) keep(release string, runs []job.Run) {
	maps.DeleteFunc(r.runs, func(name string, old *ran) bool {
		same := func(run job.Run) bool { return run.Name == name && run.Hash == old.hash }
		return r.release != release || old.end == "" || !slices.ContainsFunc(runs, same)
	})
	r.release = release
}

// forget forgets what these runs have said.
func (r result) forget(runs []job.Run) {
	for _, run := range runs {
		delete(r.runs, run.Name)
	}
}

// has tells whether the run has begun. One that the guest did not live to end has ended
// so.
func (r result) has(run job.Run) bool { return r.runs[run.Name] != nil }

// failed are names of runs that failed.
func (r result) failed() (names []string) {
	for name, run := range r.runs {
		if run.end != job.OK {
			names = append(names, name)
		}
	}
	return names
}
