// SPDX-License-Identifier: Apache-2.0

// Package pressure tells how short a machine is of processors, for tests and for the verdict
// on those that needed a second run.
package pressure

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Counters are what the kernel has counted since its start.
type Counters struct {
	// Waited is for how long at least one task waited for a processor.
	Waited time.Duration
	// Stolen is the time of all processors together in which the machine waited for its host.
	Stolen time.Duration
}

var waitedMicroseconds = regexp.MustCompile(`(?m)^some .*total=(\d+)$`)

// Parse reads /proc/pressure/cpu and the time stolen in /proc/stat, in ticks of a hundredth of
// a second.
func Parse(pressure, stat string) (Counters, error) {
	match := waitedMicroseconds.FindStringSubmatch(pressure)
	fields := strings.Fields(stat)
	if match == nil || len(fields) < 9 || fields[0] != "cpu" {
		return Counters{}, errors.New("the kernel's accounts of processors are not understood")
	}
	waited, err := strconv.ParseInt(match[1], 10, 64)
	stolen, stolenErr := strconv.ParseInt(fields[8], 10, 64)
	if err := errors.Join(err, stolenErr); err != nil {
		return Counters{}, fmt.Errorf("the kernel's accounts of processors are not understood: %w", err)
	}
	return Counters{time.Duration(waited) * time.Microsecond, time.Duration(stolen) * 10 * time.Millisecond}, nil
}

// Now reads them.
func Now() (Counters, error) {
	pressure, err := os.ReadFile("/proc/pressure/cpu")
	stat, statErr := os.ReadFile("/proc/stat")
	if err := errors.Join(err, statErr); err != nil {
		return Counters{}, fmt.Errorf("failed to read the kernel's accounts of processors: %w", err)
	}
	return Parse(string(pressure), string(stat))
}

// Since are the counters without those before.
func (c Counters) Since(before Counters) Counters {
	return Counters{c.Waited - before.Waited, c.Stolen - before.Stolen}
}
