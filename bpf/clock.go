// SPDX-License-Identifier: Apache-2.0

package bpf

import (
	"time"

	"golang.org/x/sys/unix"
)

// Now is the programs' clock, that of bpf_ktime_get_ns: since boot, without times of sleep.
func Now() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail for this clock
	return time.Duration(now.Nano())
}
