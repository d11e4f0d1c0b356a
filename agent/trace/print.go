// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"braid.dev/braid/internal/output"
)

// Print prints a report: a table for each packet, or for programs.
func Print(w io.Writer, format output.Format, report *Report) error {
	if format != output.Text {
		return format.Write(w, report)
	}
	for i := range report.Packets {
		if i > 0 {
			fmt.Fprintln(w)
		}
		if err := printPacket(w, &report.Packets[i]); err != nil {
			return err
		}
	}
	return nil
}

func printPacket(w io.Writer, packet *PacketReport) error {
	fmt.Fprintf(w, "%d. %s\n", packet.Number, packet.Packet)
	if len(packet.Steps) > 0 {
		table := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
		fmt.Fprintln(table, "   PROGRAM\tON\tVERDICT\tWHAT")
		for i := range packet.Steps {
			printStep(table, &packet.Steps[i])
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "   %s\n", packet.Outcome)
	return err
}

func printStep(w io.Writer, step *Step) {
	what := step.what()
	if len(what) == 0 {
		what = []string{"-"}
	}
	fmt.Fprintf(w, "   %s\t%s %s\t%s\t%s\n", step.Program, step.Interface, step.Hook, step.Verdict, what[0])
	for _, line := range what[1:] {
		fmt.Fprintf(w, "   \t\t\t%s\n", line)
	}
}

// what says in lines what a program did.
func (s *Step) what() (lines []string) {
	for _, rule := range s.Rules {
		line := "rule " + rule.Name
		if rule.Acted {
			line += " acted"
		}
		if rule.Policy != "" {
			line += " (" + rule.Policy + ")"
		}
		lines = append(lines, line)
	}
	if s.Flow != nil {
		lines = append(lines, s.Flow.text())
	}
	if s.Path != "" {
		lines = append(lines, strings.TrimSpace(fmt.Sprintf("path %s: %s %s", s.Path, s.NIC, s.NextHop)))
	}
	for _, change := range s.Changes {
		lines = append(lines, fmt.Sprintf("byte %d, %s: %s -> %s", change.Offset, change.Field, shorten(change.Before), shorten(change.After)))
	}
	return append(lines, s.Notes...)
}

func (f *Flow) text() string {
	age, role := "known", "responder"
	if f.New {
		age = "new"
	}
	if f.Initiator {
		role = "initiator"
	}
	line := fmt.Sprintf("flow %s, %s, its path %s", age, role, f.Path)
	if len(f.Avoided) > 0 {
		line += ", avoids " + strings.Join(f.Avoided, " and ")
	}
	if f.Token != 0 {
		line += ", token " + f.Token.String()
	}
	return line
}

// longest is how many digits of changed bytes a line shows.
const longest = 24

func shorten(digits string) string {
	if len(digits) <= longest {
		return digits
	}
	return digits[:longest] + "…"
}
