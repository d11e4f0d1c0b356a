// SPDX-License-Identifier: Apache-2.0

// Kernels boots kernels of Debian in QEMU, runs tests of this repository on them,
// and writes down which passed on which kernel.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"braid.dev/braid/hack/kernels/job"
)

// options of the command line.
type options struct {
	suites, lines, packages, test, accelerator, document, logs string
}

func main() {
	var o options
	flag.StringVar(&o.suites, "suites", "bookworm,trixie,trixie-backports", "suites of Debian whose newest kernels are booted")
	flag.StringVar(&o.lines, "lines", "", "test only for lines of the table that match; the others say that they were not run")
	flag.StringVar(&o.packages, "packages", "", "test these packages instead, ./bpf,./agent/pace for example, and write no document")
	flag.StringVar(&o.test, "run", "", "with -packages: only tests that match")
	flag.StringVar(&o.accelerator, "accelerator", "auto", "kvm, tcg, or auto: KVM where a guest boots with it")
	flag.StringVar(&o.document, "document", "docs/kernels.md", "where the table goes when everything was run")
	flag.StringVar(&o.logs, "logs", "_out/kernels", "where guests' output and consoles go")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if err := choose(o.lines); err != nil {
		return err
	}
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return fmt.Errorf("making the directory of logs: %w", err)
	}
	kernels, err := fetch(ctx, strings.Split(o.suites, ","))
	if err != nil {
		return err
	}
	work, err := compile(ctx, o)
	if err != nil {
		return err
	}
	m, err := newMachine(ctx, o)
	if err != nil {
		return err
	}
	var results []result
	for _, k := range kernels {
		result, err := test(ctx, &m, k, work, o)
		if err != nil {
			return fmt.Errorf("testing the kernel of %s: %w", k.suite, err)
		}
		results = append(results, result)
	}
	return report(results, m.accelerator, o)
}

// fetch has the tools installed and the kernels in the cache.
func fetch(ctx context.Context, suites []string) (kernels []kernel, err error) {
	if _, err := output(ctx, "hack/kernels/tools.sh"); err != nil {
		return nil, err
	}
	for _, suite := range suites {
		directory, err := output(ctx, "hack/kernels/fetch.sh", suite)
		if err != nil {
			return nil, err
		}
		kernels = append(kernels, kernel{suite, directory})
	}
	return kernels, nil
}

// output is what the command prints, without the end of the line.
func output(ctx context.Context, name string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("running %s %s: %w", name, strings.Join(arguments, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// compile compiles the tests, which need nothing of the guest then.
func compile(ctx context.Context, o options) (job.Job, error) {
	repository, err := os.Getwd()
	if err != nil {
		return job.Job{}, fmt.Errorf("finding the repository: %w", err)
	}
	work := job.Job{Modules: guestModules}
	for _, name := range o.packageNames() {
		tests := o.test
		if o.packages == "" {
			tests = testsOf(name)
		}
		say("compiling the tests of %s", name)
		binary := filepath.Join(repository, o.logs, strings.ReplaceAll(name, "/", "-")+".test")
		if err := build(ctx, "test", "-c", "-o", binary, "./"+name); err != nil {
			return job.Job{}, err
		}
		work.Runs = append(work.Runs, job.Run{
			Package: name, Binary: binary, Directory: filepath.Join(repository, name),
			Arguments: []string{"-test.v=test2json", "-test.timeout=60m", "-test.run=" + tests},
		})
	}
	return work, nil
}

func (o options) packageNames() (names []string) {
	if o.packages == "" {
		return packages()
	}
	for name := range strings.SplitSeq(o.packages, ",") {
		names = append(names, strings.TrimPrefix(name, "./"))
	}
	return names
}

// build runs the go command for a static result.
func build(ctx context.Context, arguments ...string) error {
	command := exec.CommandContext(ctx, "go", arguments...)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("running go %s: %w", strings.Join(arguments, " "), err)
	}
	return nil
}

func newMachine(ctx context.Context, o options) (machine, error) {
	work, err := filepath.Abs(o.logs)
	if err != nil {
		return machine{}, fmt.Errorf("finding the directory of logs: %w", err)
	}
	m := machine{accelerator: o.accelerator, init: filepath.Join(work, "guest"), work: work}
	return m, build(ctx, "build", "-o", m.init, "./hack/kernels/guest")
}

// test boots one kernel and runs the tests on it.
func test(ctx context.Context, m *machine, k kernel, work job.Job, o options) (result, error) {
	if m.accelerator == "auto" {
		if err := m.choose(ctx, k); err != nil {
			return result{}, err
		}
	}
	log, err := os.Create(filepath.Join(o.logs, k.suite+".log"))
	if err != nil {
		return result{}, fmt.Errorf("keeping the guest's output: %w", err)
	}
	defer log.Close()
	say("booting the kernel of %s (%s)", k.suite, m.accelerator)
	parser := newParser(k.suite)
	release, err := m.run(ctx, k, work, teeTo(log, parser))
	parser.result.release = release
	return parser.result, err
}

// choose takes KVM where a guest boots with it, and software emulation elsewhere.
func (m *machine) choose(ctx context.Context, k kernel) error {
	m.accelerator = "tcg"
	file, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	if err := file.Close(); err != nil {
		return err
	}
	trial := *m
	trial.accelerator = "kvm"
	_, err = trial.run(ctx, k, job.Job{}, new(strings.Builder))
	switch {
	case err == nil:
		m.accelerator = "kvm"
	case !errors.Is(err, errNoBoot):
		return err
	default:
		say("KVM boots no guest here; by software emulation instead: %v", err)
	}
	return nil
}

func say(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "kernels: "+format+"\n", arguments...)
}
