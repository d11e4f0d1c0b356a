// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
)

// Figure is the median of some trials, and how far they spread.
type Figure struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	N     int     `json:"n"`
}

// Figures are those of a run, by name, as they are in its file.
type Figures struct {
	Figures map[string]Figure `json:"figures"`
}

// Median of some values.
func Median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Quantile is the least of the values that so large a share of them does not exceed.
func Quantile(values []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}

// Ratios divides trial by trial.
func Ratios(values, by []float64) (quotients []float64) {
	for i := range values {
		quotients = append(quotients, values[i]/by[i])
	}
	return quotients
}

// MedianWithin are the values between which the median of what they are a sample of lies, 95
// times of 100 (by the sign test).
func MedianWithin(values []float64) (least, most float64) {
	sorted := slices.Sorted(slices.Values(values))
	n := float64(len(sorted))
	rank := max(0, int(math.Floor((n-1.96*math.Sqrt(n))/2))-1)
	return sorted[rank], sorted[len(sorted)-1-rank]
}

func round(value float64) float64 { return math.Round(value*1000) / 1000 }

// Read reads the figures of the last run, if there was one.
func (f *Figures) Read(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(data, f)
	}
	if err != nil {
		return fmt.Errorf("reading the figures of the last run from %s: %w", path, err)
	}
	return nil
}

// Write writes the figures to a file.
func (f *Figures) Write(path string) error {
	data, err := json.MarshalIndent(f, "", "  ")
	err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, append(data, '\n'), 0o644))
	if err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	return nil
}

// Print prints the figures as a table.
func (f *Figures) Print(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nFIGURE\tMEDIAN\tMIN\tMAX\tN\tUNIT")
	for _, name := range slices.Sorted(maps.Keys(f.Figures)) {
		one := f.Figures[name]
		fmt.Fprintf(table, "%s\t%g\t%g\t%g\t%d\t%s\n", name, one.Value, one.Min, one.Max, one.N, one.Unit)
	}
	return table.Flush()
}
