// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"braid.dev/braid/internal/output"
)

// print prints a value, or its text.
func (p *plugin) print(value any, text func() string) error {
	if p.format == output.Text {
		fmt.Fprint(p.out, printable(text()))
		return nil
	}
	return p.format.Write(p.out, value)
}

// printable shows what a terminal would obey instead of showing, such as the escape sequences
// of an Event that a tenant wrote.
func printable(text string) string {
	isHidden := func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) }
	if !strings.ContainsFunc(text, isHidden) {
		return text
	}
	var shown strings.Builder
	for _, r := range text {
		if isHidden(r) {
			shown.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			shown.WriteRune(r)
		}
	}
	return shown.String()
}

// table aligns cells, a line for each row.
func table(rows ...[]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a builder takes everything
	var trimmed strings.Builder
	for line := range strings.Lines(b.String()) {
		trimmed.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return trimmed.String()
}
