// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// cpu is processor time in seconds. Sender and receiver are threads of this
// process; what the nodes do with packets is mostly softirqs, of which some run
// in the sender's time and count there too.
type cpu struct{ process, softirqs float64 }

func readCPU() (cpu, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return cpu{}, fmt.Errorf("reading processor times: %w", err)
	}
	var user, nice, system, idle, iowait, irq, softirq float64
	if _, err := fmt.Fscanf(bytes.NewReader(data), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &softirq); err != nil {
		return cpu{}, fmt.Errorf("reading processor times: %w", err)
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return cpu{}, fmt.Errorf("reading the process's times: %w", err)
	}
	const ticks = 100 // of /proc/stat, a second
	return cpu{process: seconds(usage.Utime) + seconds(usage.Stime), softirqs: (irq + softirq) / ticks}, nil
}

func seconds(t unix.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }

// since is what was spent since then for each gigabyte, in seconds.
func (c cpu) since(moved int64) (cpu, error) {
	now, err := readCPU()
	if err != nil {
		return cpu{}, err
	}
	gigabytes := float64(moved) / 1e9
	return cpu{
		process:  (now.process - c.process) / gigabytes,
		softirqs: (now.softirqs - c.softirqs) / gigabytes,
	}, nil
}

func (b *bench) addCPU(usage map[string][]cpu) {
	for _, mode := range slices.Sorted(maps.Keys(usage)) {
		var process, softirqs []float64
		for _, one := range usage[mode] {
			process, softirqs = append(process, one.process), append(softirqs, one.softirqs)
		}
		b.add("cpu.sender_and_receiver."+mode, "s/GB", process)
		b.add("cpu.softirqs."+mode, "s/GB", softirqs)
	}
}
