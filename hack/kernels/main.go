// SPDX-License-Identifier: Apache-2.0

// Kernels boots kernels of Debian in QEMU, runs tests of this repository on them,
// and writes down which passed on which kernel.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"braid.dev/braid/hack/kernels/job"
)

// options of the command line.
type options struct {
	suites, lines, packages, test, accelerator, document, logs string
	limit                                                      time.Duration
	again                                                      bool
}

func main() {
	var o options
	flag.StringVar(&o.suites, "suites", "bookworm,trixie,trixie-backports", "suites of Debian whose newest kernels are booted")
	flag.StringVar(&o.lines, "lines", "", "test only for lines of the table that match; the others say what the logs hold, or that they were not run")
	flag.StringVar(&o.packages, "packages", "", "test these packages instead, ./bpf/uplink,./agent/pace for example, and write no document")
	flag.StringVar(&o.test, "run", "", "with -packages: only tests that match")
	flag.StringVar(&o.accelerator, "accelerator", "auto", "kvm, tcg, or auto: KVM where a guest boots with it")
	flag.StringVar(&o.document, "document", "docs/kernels.md", "where the table goes")
	flag.StringVar(&o.logs, "logs", "_out/kernels", "where guests' output and consoles go")
	flag.DurationVar(&o.limit, "limit", 30*time.Minute, "how long the tests of a line may take, by the guest's clock")
	flag.BoolVar(&o.again, "again", false, "test again what the logs hold of the same tests")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if err := os.MkdirAll(o.logs, 0o755); err != nil {
		return fmt.Errorf("making the directory of logs: %w", err)
	}
	lines, chosen, err := o.choose()
	if err != nil {
		return err
	}
	kernels, err := fetch(ctx, strings.Split(o.suites, ","))
	if err != nil {
		return err
	}
	runs, err := compile(ctx, lines, o)
	if err != nil {
		return err
	}
	m, err := newMachine(ctx, o)
	if err != nil {
		return err
	}
	results, err := testAll(ctx, &m, kernels, runs, chosen, o)
	if ctx.Err() != nil {
		return err
	}
	return errors.Join(err, report(lines, results, o))
}

// choose are the table's lines, and those to test.
func (o options) choose() (lines, chosen []capability, err error) {
	if o.packages != "" {
		lines = linesOf(o.packages, o.test)
		return lines, lines, nil
	}
	chosen, err = choose(o.lines)
	return capabilities, chosen, err
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
		release, err := releaseIn(directory)
		if err != nil {
			return nil, err
		}
		kernels = append(kernels, kernel{suite: suite, directory: directory, release: release})
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

// compile compiles the tests of lines, which need nothing of the guest then.
func compile(ctx context.Context, lines []capability, o options) (runs []job.Run, err error) {
	repository, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("finding the repository: %w", err)
	}
	compiled := map[string][]byte{}
	for _, c := range lines {
		binary := filepath.Join(repository, o.logs, strings.ReplaceAll(c.packageName, "/", "-")+".test")
		if compiled[binary] == nil {
			if compiled[binary], err = compileOne(ctx, c.packageName, binary); err != nil {
				return nil, err
			}
		}
		runs = append(runs, job.Run{
			Name: c.name, Needs: c.needs, Hash: hash(compiled[binary], c), Binary: binary, Directory: filepath.Join(repository, c.packageName),
			Arguments: []string{"-test.v=test2json", "-test.timeout=" + o.limit.String(), "-test.run=" + c.tests, "-test.skip=" + c.except},
		})
	}
	return runs, nil
}

// compileOne compiles the tests of a package, and returns what they became.
func compileOne(ctx context.Context, packageName, binary string) ([]byte, error) {
	say("compiling the tests of %s", packageName)
	if err := build(ctx, "test", "-c", "-o", binary, "./"+packageName); err != nil {
		return nil, err
	}
	content, err := os.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("reading the tests of %s: %w", packageName, err)
	}
	return content, nil
}

// hash is that of what a line tests.
func hash(binary []byte, c capability) string {
	all := sha256.Sum256(append(slices.Clone(binary), c.tests+"\n"+c.except...))
	return fmt.Sprintf("%x", all[:8])
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
	m := machine{accelerator: o.accelerator, init: filepath.Join(work, "guest"), work: work, limit: o.limit}
	return m, build(ctx, "build", "-o", m.init, "./hack/kernels/guest")
}

// testAll tests one kernel after the other. A kernel that fails does not end it.
func testAll(ctx context.Context, m *machine, kernels []kernel, runs []job.Run, chosen []capability, o options) (results []result, err error) {
	for _, k := range kernels {
		result, failure := test(ctx, m, k, runs, chosen, o)
		if failure != nil {
			err = errors.Join(err, fmt.Errorf("testing the kernel of %s: %w", k.suite, failure))
		}
		results = append(results, result)
	}
	return results, err
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
	err = trial.run(ctx, k, job.Job{}, new(strings.Builder))
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
