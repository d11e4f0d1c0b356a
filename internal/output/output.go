// SPDX-License-Identifier: Apache-2.0

// Package output prints what programs may read, wherever a command prints a table.
package output

import (
	"encoding/json"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// Format is how to print.
type Format string

const (
	// Text is for people.
	Text Format = ""
	// JSON is one indented value.
	JSON Format = "json"
	// YAML is one document.
	YAML Format = "yaml"
)

// String implements pflag.Value.
func (f *Format) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *Format) Type() string { return "json|yaml" }

// Set implements pflag.Value.
func (f *Format) Set(text string) error {
	switch format := Format(text); format {
	case JSON, YAML:
		*f = format
		return nil
	}
	return fmt.Errorf("must be %s or %s", JSON, YAML)
}

// Write writes a value as JSON or YAML.
func (f Format) Write(w io.Writer, value any) error {
	if f == YAML {
		return writeYAML(w, value)
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}

func writeYAML(w io.Writer, value any) error {
	data, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("writing YAML: %w", err)
	}
	_, err = w.Write(data)
	return err
}
