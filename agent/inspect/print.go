// SPDX-License-Identifier: Apache-2.0

package inspect

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"

	"braid.dev/braid/agent/events"
)

// Format is how to print.
type Format string

const (
	// FormatTable is for people.
	FormatTable Format = ""
	// FormatJSON is one array, or for events one object a line.
	FormatJSON Format = "json"
	// FormatYAML is one list, or for events one document each.
	FormatYAML Format = "yaml"
)

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "json|yaml" }

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	switch format := Format(text); format {
	case FormatJSON, FormatYAML:
		*f = format
		return nil
	}
	return fmt.Errorf("must be %s or %s", FormatJSON, FormatYAML)
}

// PrintSubflows prints in this format.
func PrintSubflows(w io.Writer, format Format, subflows []Subflow) error {
	if format == FormatTable {
		return WriteSubflows(w, subflows)
	}
	return printList(w, format, subflows)
}

// PrintRules prints in this format.
func PrintRules(w io.Writer, format Format, rules []Rule) error {
	if format == FormatTable {
		return WriteRules(w, rules)
	}
	return printList(w, format, rules)
}

// EventPrinter returns a function that prints one event after the other.
func EventPrinter(w io.Writer, format Format) func(events.Event) error {
	switch format {
	case FormatJSON:
		encoder := json.NewEncoder(w)
		return func(event events.Event) error { return encoder.Encode(event) }
	case FormatYAML:
		return func(event events.Event) error {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return err
			}
			return printYAML(w, event)
		}
	}
	return NewEventWriter(w).Write
}

// printList prints a list, also an empty one.
func printList[T any](w io.Writer, format Format, list []T) error {
	if list == nil {
		list = []T{}
	}
	if format == FormatYAML {
		return printYAML(w, list)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(list)
}

func printYAML(w io.Writer, value any) error {
	data, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("writing YAML: %w", err)
	}
	_, err = w.Write(data)
	return err
}
