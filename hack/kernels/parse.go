// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"

	"braid.dev/braid/hack/kernels/job"
)

// outcome of a test.
type outcome string

const (
	passed  outcome = "PASS"
	failed  outcome = "FAIL"
	skipped outcome = "SKIP"
	// late are tests that were running when their time had run out.
	late outcome = "LATE"
)

// tested is one test or subtest.
type tested struct {
	// name with those of the tests around it.
	name    string
	outcome outcome
	// output of the test itself, without that of its subtests.
	output []string
}

// ran is what one run said.
type ran struct {
	// hash of what was tested.
	hash  string
	tests []*tested
	// end is the run's result, "" while it has none.
	end string
	// late is true when its time ran out.
	late bool
}

// result is what ran on one kernel.
type result struct {
	suite, release, accelerator string
	runs                        map[string]*ran // by name
}

// parser reads what guests say, line by line. Of several runs with the same name the
// last one counts.
type parser struct {
	result result
	run    *ran
	test   *tested // whose output comes
}

func newParser(suite string) *parser {
	return &parser{result: result{suite: suite, runs: map[string]*ran{}}}
}

// The marks of test2json, which no output of tests has.
var (
	begins = regexp.MustCompile(`^\x16=== (RUN|CONT|NAME|PAUSE) +(\S*)$`)
	ends   = regexp.MustCompile(`^\x16? *--- (PASS|FAIL|SKIP): (\S+) \(`)
)

const lateMark = "panic: test timed out after "

// line takes the next line.
func (p *parser) line(line string) {
	if p.ofTheGuest(line) || p.run == nil {
		return
	}
	if match := begins.FindStringSubmatch(line); match != nil {
		p.test = p.run.named(match[2])
		return
	}
	if at := strings.LastIndexByte(line, '\x16'); at >= 0 {
		line = line[at:]
	}
	if match := ends.FindStringSubmatch(line); match != nil {
		p.test = p.run.named(match[2])
		p.test.outcome = outcome(match[1])
		return
	}
	p.run.late = p.run.late || strings.HasPrefix(line, lateMark)
	if p.test != nil && strings.TrimSpace(line) != "" {
		p.test.output = append(p.test.output, strings.TrimSpace(line))
	}
}

// ofTheGuest takes a line that is not a test's.
func (p *parser) ofTheGuest(line string) bool {
	if how, ok := strings.CutPrefix(line, job.Booting); ok {
		p.run, p.result.accelerator = nil, how
		return true
	}
	if release, ok := strings.CutPrefix(line, job.Booted); ok {
		p.booted(release)
		return true
	}
	if key, ok := strings.CutPrefix(line, job.Began); ok {
		hash, name, _ := strings.Cut(key, " ")
		p.run, p.test = &ran{hash: hash}, nil
		p.result.runs[name] = p.run
		return true
	}
	if end, ok := strings.CutPrefix(line, job.Ended); ok && p.run != nil {
		p.run.finish(end)
		p.run = nil
		return true
	}
	return false
}

// booted forgets what another kernel has said.
func (p *parser) booted(release string) {
	if p.result.release != release {
		clear(p.result.runs)
	}
	p.result.release = release
}

// finish notes how the run ended. Tests that have no outcome were running then, and
// failed with their process unless it was only their time that ran out.
func (r *ran) finish(end string) {
	r.end = end
	for _, test := range r.tests {
		switch {
		case test.outcome != "":
		case r.late:
			test.outcome = late
		default:
			test.outcome = failed
		}
	}
}

// named is the test with this name, nil for none.
func (r *ran) named(name string) *tested {
	if name == "" {
		return nil
	}
	for _, test := range r.tests {
		if test.name == name {
			return test
		}
	}
	test := &tested{name: name}
	r.tests = append(r.tests, test)
	return test
}

// teeTo is a writer of lines that also go to a file.
func teeTo(file *os.File, p *parser) io.Writer { return io.MultiWriter(file, lineWriter{p}) }

// lineWriter gets one whole line with each Write.
type lineWriter struct{ parser *parser }

func (w lineWriter) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	w.parser.line(text)
	if key, ok := strings.CutPrefix(text, job.Began); ok {
		_, name, _ := strings.Cut(key, " ")
		say("%s: %s", w.parser.result.suite, name)
	}
	return len(line), nil
}

// eachLine calls f with each line, however long.
func eachLine(lines io.Reader, f func(line string) error) error {
	reader := bufio.NewReader(lines)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			if failed := f(strings.TrimSuffix(line, "\n")); failed != nil {
				return failed
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading what the guest says: %w", err)
		}
	}
}
