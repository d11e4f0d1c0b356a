// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"
)

// cpu is time that the machine's processors spent, in ticks of 10 ms. Sender and
// receiver are processes; what the nodes do with packets is mostly softirqs.
type cpu struct{ processes, softirqs float64 }

func readCPU() (cpu, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpu{}, fmt.Errorf("reading processor times: %w", err)
	}
	var user, nice, system, idle, iowait, irq, softirq float64
	if _, err := fmt.Fscanf(bytes.NewReader(data), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &softirq); err != nil {
		return cpu{}, fmt.Errorf("reading processor times: %w", err)
	}
	return cpu{processes: user + nice + system, softirqs: irq + softirq}, nil
}

// since is what was spent since then for each gigabyte, in seconds.
func (c cpu) since(moved int64) (cpu, error) {
	now, err := readCPU()
	if err != nil {
		return cpu{}, err
	}
	gigabytes := float64(moved) / 1e9
	return cpu{
		processes: (now.processes - c.processes) / 100 / gigabytes,
		softirqs:  (now.softirqs - c.softirqs) / 100 / gigabytes,
	}, nil
}

func (b *bench) addCPU(usage map[string][]cpu) {
	for _, mode := range slices.Sorted(maps.Keys(usage)) {
		var processes, softirqs []float64
		for _, one := range usage[mode] {
			processes, softirqs = append(processes, one.processes), append(softirqs, one.softirqs)
		}
		b.add("cpu.processes."+mode, "s/GB", processes)
		b.add("cpu.softirqs."+mode, "s/GB", softirqs)
	}
}
