// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

// cell is what a kernel does with a capability, in a word or two.
func cell(c capability, r result) string {
	if c.left {
		return "not run"
	}
	if why, ok := r.broken[c.packageName]; ok {
		return "not tested: " + why
	}
	count := map[outcome]int{}
	for _, test := range r.of(c) {
		count[test.outcome]++
	}
	if r.cut[c.packageName] && count[failed] == 0 {
		return "not tested to the end"
	}
	switch {
	case count[failed] > 0:
		return fmt.Sprintf("**no**: %d of %d failed", count[failed], count[failed]+count[passed])
	case count[passed] > 0:
		return fmt.Sprintf("yes (%d)", count[passed])
	case count[skipped] > 0:
		return "does not apply"
	}
	return "—"
}

// of are the capability's tests. Those that only hold others together are left out,
// unless they fail by themselves.
func (r result) of(c capability) (tests []*tested) {
	for _, test := range r.tests {
		if c.covers(test) && !r.holds(test) {
			tests = append(tests, test)
		}
	}
	return tests
}

// holds tells whether the test has subtests, of which one failed if it did.
func (r result) holds(test *tested) bool {
	subtests, failures := 0, 0
	for _, other := range r.tests {
		if other.packageName == test.packageName && strings.HasPrefix(other.name, test.name+"/") {
			subtests++
			if other.outcome == failed {
				failures++
			}
		}
	}
	return subtests > 0 && (test.outcome != failed || failures > 0)
}

var accelerators = map[string]string{"kvm": "with KVM", "tcg": "in software emulation"}

// document is the table and what did not pass.
func document(results []result, accelerator string) string {
	var text strings.Builder
	text.WriteString("<!-- Written by make test-kernels. -->\n# What works on which kernel\n\n")
	fmt.Fprintf(&text, "`make test-kernels` boots these kernels of Debian in QEMU (%s) and runs the tests there.\n", accelerators[accelerator])
	text.WriteString("A number in brackets is how many tests have passed; — means that a kernel has no such test:\n" +
		"it lacks what the test is about. What each needs is in [requirements.md](requirements.md).\n\n")
	writeTable(&text, results)
	for _, r := range results {
		writeDetails(&text, r)
	}
	return text.String()
}

func writeTable(text *strings.Builder, results []result) {
	text.WriteString("| |")
	for _, r := range results {
		fmt.Fprintf(text, " %s (%s) |", version(r.release), r.suite)
	}
	text.WriteString("\n|---|" + strings.Repeat("---|", len(results)) + "\n")
	for _, c := range capabilities {
		fmt.Fprintf(text, "| %s |", c.name)
		for _, r := range results {
			fmt.Fprintf(text, " %s |", cell(c, r))
		}
		text.WriteString("\n")
	}
}

// version is what a release such as 6.1.0-50-amd64 begins with.
func version(release string) string { return strings.TrimSuffix(release, "-amd64") }

// writeDetails names the tests that did not pass, and why.
func writeDetails(text *strings.Builder, r result) {
	fmt.Fprintf(text, "\n## %s\n\n", r.release)
	all := true
	for _, c := range capabilities {
		if c.left {
			continue
		}
		for _, test := range r.of(c) {
			if test.outcome == passed {
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

const mostReason = 300

// shorten is the first line that a test wrote before it ended, at most so long.
func shorten(output []string) string {
	reason := output[0]
	if len(reason) > mostReason {
		reason = reason[:mostReason] + "…"
	}
	return strings.ReplaceAll(reason, "|", "\\|")
}

// report writes the document, or shows what it would say where not all was run.
func report(results []result, accelerator string, o options) error {
	text := document(results, accelerator)
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
