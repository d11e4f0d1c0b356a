// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"io"

	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/output"
)

// Format is how to print: a table for people, one JSON array or one YAML list; for
// events one JSON object a line, or one YAML document each.
type Format = output.Format

// PrintSubflows prints in this format.
func PrintSubflows(w io.Writer, format Format, subflows []agentapi.Subflow) error {
	if format == output.Text {
		return WriteSubflows(w, subflows)
	}
	return printList(w, format, subflows)
}

// PrintRules prints in this format.
func PrintRules(w io.Writer, format Format, rules []agentapi.Rule) error {
	if format == output.Text {
		return WriteRules(w, rules)
	}
	return printList(w, format, rules)
}

// PrintSpreading prints in this format.
func PrintSpreading(w io.Writer, format Format, all []agentapi.Spreading) error {
	if format != output.Text {
		return printList(w, format, all)
	}
	var table lines
	if len(all) == 0 {
		table.add("no pod was looked at yet")
	}
	for i := range all {
		table.WriteString(all[i].Endpoint + "\n" + all[i].Text("  "))
	}
	return table.writeTo(w, "what pods' traffic does")
}

// EventPrinter returns a function that prints one event after the other.
func EventPrinter(w io.Writer, format Format) func(agentapi.Event) error {
	if format == output.Text {
		return NewEventWriter(w).Write
	}
	return func(event agentapi.Event) error { return format.WriteNext(w, event) }
}

// printList prints a list, also an empty one.
func printList[T any](w io.Writer, format Format, list []T) error {
	if list == nil {
		list = []T{}
	}
	return format.Write(w, list)
}
