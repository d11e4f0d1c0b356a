// SPDX-License-Identifier: Apache-2.0

package main

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

// figure is the median of some trials, and how far they spread.
type figure struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	N     int     `json:"n"`
}

// figures are those of a run, by name.
type figures struct {
	Figures map[string]figure `json:"figures"`
}

func newFigures() *figures { return &figures{Figures: map[string]figure{}} }

// add notes the trials of one figure.
func (f *figures) add(name, unit string, trials []float64) {
	if len(trials) == 0 {
		return
	}
	f.Figures[name] = figure{
		Value: round(median(trials)), Unit: unit,
		Min: round(slices.Min(trials)), Max: round(slices.Max(trials)), N: len(trials),
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

func round(value float64) float64 { return math.Round(value*1000) / 1000 }

func (f *figures) read(path string) error {
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the figures of the last run: %w", err)
	}
	if err := json.Unmarshal(data, f); err != nil {
		return fmt.Errorf("reading the figures of the last run: %s: %w", path, err)
	}
	return nil
}

func (f *figures) write(path string) error {
	data, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, append(data, '\n'), 0o644)); err != nil {
		return fmt.Errorf("writing the figures: %w", err)
	}
	return nil
}

func (f *figures) print(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nFIGURE\tMEDIAN\tMIN\tMAX\tN\tUNIT")
	for _, name := range slices.Sorted(maps.Keys(f.Figures)) {
		one := f.Figures[name]
		fmt.Fprintf(table, "%s\t%g\t%g\t%g\t%d\t%s\n", name, one.Value, one.Min, one.Max, one.N, one.Unit)
	}
	return table.Flush()
}
