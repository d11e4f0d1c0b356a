// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"fmt"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// CPU is processor time in seconds. Sender and receiver are threads of this process;
// what the nodes do with packets is mostly softirqs, of which some run in the
// sender's time and count there too.
type CPU struct{ Process, Softirqs float64 }

// ReadCPU reads what was spent so far.
func ReadCPU() (CPU, error) {
	var machine procfs.Stat
	proc, err := procfs.NewDefaultFS()
	if err == nil {
		machine, err = proc.Stat()
	}
	if err != nil {
		return CPU{}, fmt.Errorf("reading processor times: %w", err)
	}
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return CPU{}, fmt.Errorf("reading the process's times: %w", err)
	}
	return CPU{
		Process:  float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9,
		Softirqs: machine.CPUTotal.IRQ + machine.CPUTotal.SoftIRQ,
	}, nil
}

// Since is what was spent since then for each gigabyte, in seconds.
func (c CPU) Since(bytes int64) (CPU, error) {
	now, err := ReadCPU()
	gigabytes := float64(bytes) / 1e9
	return CPU{Process: (now.Process - c.Process) / gigabytes, Softirqs: (now.Softirqs - c.Softirqs) / gigabytes}, err
}

// Sum is that of both.
func (c CPU) Sum() float64 { return c.Process + c.Softirqs }
