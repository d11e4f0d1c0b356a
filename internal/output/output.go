// SPDX-License-Identifier: Apache-2.0

// Package output prints what programs may read, wherever a command prints a table.
package output

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

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

// WriteNext writes one of the values that come one after the other: a line of JSON, or
// a YAML document that begins with its marker.
func (f Format) WriteNext(w io.Writer, value any) error {
	if f != YAML {
		return json.NewEncoder(w).Encode(value)
	}
	if _, err := io.WriteString(w, "---\n"); err != nil {
		return err
	}
	return writeYAML(w, value)
}

// Duration writes a time with three digits or so, whatever the unit; "-" for none.
func Duration(d time.Duration) string {
	switch {
	case d <= 0:
		return "-"
	case d < time.Millisecond:
		return strconv.FormatInt(d.Microseconds(), 10) + "us"
	case d < 100*time.Millisecond:
		return strconv.FormatFloat(d.Seconds()*1000, 'f', 1, 64) + "ms"
	case d < 10*time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + "ms"
	}
	return strconv.FormatInt(int64(d.Seconds()), 10) + "s"
}

func writeYAML(w io.Writer, value any) error {
	data, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("writing YAML: %w", err)
	}
	_, err = w.Write(data)
	return err
}
