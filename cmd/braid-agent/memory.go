// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
)

// memoryVariable has the container's limit of memory in bytes.
const memoryVariable = "MEMORY_LIMIT"

// limitHeap has the runtime collect garbage more often as it comes near to two thirds of the
// container's limit, lest the kernel ends the agent. The rest is for what the runtime does
// not see and the container pays for too: the packet programs' maps, some 70 MiB of them,
// and the program's own pages.
func limitHeap() error {
	text := os.Getenv(memoryVariable)
	if text == "" {
		return nil
	}
	limit, err := strconv.ParseInt(text, 10, 64)
	if err != nil || limit <= 0 {
		return fmt.Errorf("$%s is a number of bytes above 0, not %q", memoryVariable, text)
	}
	debug.SetMemoryLimit(limit / 3 * 2)
	return nil
}
