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
)

// tested is one test or subtest.
type tested struct {
	// Package relative to the repository, and name with those of the tests around it.
	packageName, name string
	outcome           outcome
	// output of the test itself, without that of its subtests.
	output []string
}

// result is what ran on one kernel.
type result struct {
	suite, release string
	tests          []*tested
	// broken are packages whose tests did not come to their end, and why.
	broken map[string]string
	// cut are packages whose tests did not all run: their process ended before.
	cut map[string]bool
}

// parser reads what guests say, line by line.
type parser struct {
	result  result
	current string // package
	running map[string]*tested
	test    *tested // whose output comes
}

func newParser(suite string) *parser {
	return &parser{result: result{suite: suite, broken: map[string]string{}, cut: map[string]bool{}}}
}

// The marks of test2json, which no output of tests has.
var (
	begins = regexp.MustCompile(`^\x16=== (RUN|CONT|NAME|PAUSE) +(\S*)$`)
	ends   = regexp.MustCompile(`^\x16? *--- (PASS|FAIL|SKIP): (\S+) \(`)
)

// line takes the next line.
func (p *parser) line(line string) {
	if name, ok := strings.CutPrefix(line, job.Began); ok {
		p.current, p.running, p.test = name, map[string]*tested{}, nil
		p.result.broken[name] = "the guest stopped"
		return
	}
	if end, ok := strings.CutPrefix(line, job.Ended); ok {
		p.end(strings.TrimPrefix(end, p.current+" "))
		return
	}
	if match := begins.FindStringSubmatch(line); match != nil {
		p.test = p.named(match[2])
		return
	}
	if at := strings.LastIndexByte(line, '\x16'); at >= 0 {
		line = line[at:]
	}
	if match := ends.FindStringSubmatch(line); match != nil {
		p.test = p.named(match[2])
		p.test.outcome = outcome(match[1])
		return
	}
	if p.test != nil && strings.TrimSpace(line) != "" {
		p.test.output = append(p.test.output, strings.TrimSpace(line))
	}
}

// end notes how the package's tests ended. Tests that have no outcome were
// running when their process ended, and failed with it.
func (p *parser) end(how string) {
	delete(p.result.broken, p.current)
	failures := 0
	for _, test := range p.running {
		if test.outcome == "" {
			test.outcome = failed
			p.result.cut[p.current] = true
		}
		if test.outcome == failed {
			failures++
		}
	}
	if how != "ok" && failures == 0 {
		p.result.broken[p.current] = how
	}
}

// named is the test with this name, nil for none.
func (p *parser) named(name string) *tested {
	if name == "" || p.running == nil {
		return nil
	}
	if p.running[name] == nil {
		p.running[name] = &tested{packageName: p.current, name: name}
		p.result.tests = append(p.result.tests, p.running[name])
	}
	return p.running[name]
}

// teeTo is a writer of lines that also go to a file.
func teeTo(file *os.File, p *parser) io.Writer { return io.MultiWriter(file, lineWriter{p}) }

// lineWriter gets one whole line with each Write.
type lineWriter struct{ parser *parser }

func (w lineWriter) Write(line []byte) (int, error) {
	text := strings.TrimSuffix(string(line), "\n")
	w.parser.line(text)
	if name, ok := strings.CutPrefix(text, job.Began); ok {
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
