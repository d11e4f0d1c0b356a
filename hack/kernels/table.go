// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"

	"braid.dev/braid/hack/kernels/job"
)

// cell is what a kernel does with a capability, in a word or two.
func cell(c capability, r result) string {
	run := r.runs[c.name]
	switch {
	case run == nil:
		return "not run"
	case run.end == "":
		return "not tested: the guest stopped"
	case run.end == job.Refused:
		return "**no**: not without the line above"
	}
	count := map[outcome]int{}
	for _, test := range run.single(c) {
		count[test.outcome]++
	}
	switch {
	case count[failed] > 0:
		return fmt.Sprintf("**no**: %d of %d failed", count[failed], count[failed]+count[passed])
	case run.late:
		return fmt.Sprintf("not tested to the end (%d)", count[passed])
	case run.end != job.OK:
		return "not tested: " + run.end
	case count[passed] > 0:
		return fmt.Sprintf("yes (%d)", count[passed])
	case count[skipped] > 0:
		return "does not apply"
	}
	return "—"
}

// single are the tests of a line without those that only hold others together, unless
// these fail by themselves. A test that has none of the subtests that the line names
// says nothing.
func (r *ran) single(c capability) (tests []*tested) {
	for _, test := range r.tests {
		above := test.outcome == passed && strings.Count(test.name, "/") < strings.Count(c.tests, "/")
		if !above && !r.holds(test) {
			tests = append(tests, test)
		}
	}
	return tests
}

// holds tells whether the test has subtests, of which one failed if it did.
func (r *ran) holds(test *tested) bool {
	subtests, failures := 0, 0
	for _, other := range r.tests {
		if strings.HasPrefix(other.name, test.name+"/") {
			subtests++
			if other.outcome == failed {
				failures++
			}
		}
	}
	return subtests > 0 && (test.outcome != failed || failures > 0)
}

// document is the table and what did not pass.
func document(lines []capability, results []result) string {
	var text strings.Builder
	text.WriteString("<!-- Written by make test-kernels. -->\n# What works on which kernel\n\n" +
		"`make test-kernels` boots these kernels of Debian in QEMU and runs the tests there.\n" +
		"A number in brackets is how many tests have passed; — means that a kernel has no such test:\n" +
		"it lacks what the test is about. What each needs is in [requirements.md](requirements.md).\n\n")
	writeTable(&text, lines, results)
	for _, r := range results {
		writeDetails(&text, lines, r)
	}
	return text.String()
}

func writeTable(text *strings.Builder, lines []capability, results []result) {
	text.WriteString("| |")
	for _, r := range results {
		fmt.Fprintf(text, " %s (%s) |", version(r.release), r.suite)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(results)) + "\n")
	for _, c := range lines {
		fmt.Fprintf(text, "| %s |", c.name)
		for _, r := range results {
			fmt.Fprintf(text, " %s |", cell(c, r))
		}
		text.WriteString("\n")
	}
}

// version is what a release such as 6.1.0-50-amd64 begins with.
func version(release string) string { return strings.TrimSuffix(release, "-amd64") }

var accelerators = map[string]string{"kvm": "with KVM", "tcg": "in software emulation"}

// writeDetails names the tests that did not pass, and why.
func writeDetails(text *strings.Builder, lines []capability, r result) {
	fmt.Fprintf(text, "\n## %s, %s\n\n", r.release, accelerators[r.accelerator])
	all := true
	for _, c := range lines {
		for _, test := range r.of(c) {
			if test.outcome == passed || test.outcome == "" {
				continue
			}
			all = false
			fmt.Fprintf(text, "- %s: `%s`", strings.ToLower(string(test.outcome)), test.name)
			if len(test.output) > 0 {
				fmt.Fprintf(text, ": %s", shorten(test.output))
			}
			text.WriteString("\n")
		}
	}
	if all {
		text.WriteString("Every test that ran has passed.\n")
	}
}

// of are the capability's tests.
func (r result) of(c capability) []*tested {
	run := r.runs[c.name]
	if run == nil {
		return nil
	}
	return run.single(c)
}

const mostReason = 300

// shorten is the first line that a test wrote before it ended, at most so long.
func shorten(output []string) string {
	reason := output[0]
	if len(reason) > mostReason {
		reason = reason[:mostReason] + "…"
	}
	return strings.ReplaceAll(reason, "|", "\\|")
}

// report writes the document, or shows what it would say.
func report(lines []capability, results []result, o options) error {
	text := document(lines, results)
	if o.packages != "" || o.document == "" {
		_, err := fmt.Print(text)
		return err
	}
	if err := os.WriteFile(o.document, []byte(text), 0o644); err != nil {
		return fmt.Errorf("writing the table: %w", err)
	}
	say("%s is written", o.document)
	return nil
}
