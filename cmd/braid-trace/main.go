// SPDX-License-Identifier: Apache-2.0

// Command braid-trace replays packets through copies of its node's programs. It is
// in the agents' image, and apart from the agent because what makes and reads
// packets takes memory that an agent would hold for as long as it runs.
package main

import (
	"fmt"
	"os"

	"braid.dev/braid/agent/trace"
	"braid.dev/braid/internal/buildinfo"
)

// version is set by the linker; without it the build's own version is used.
var version string

func main() {
	command := trace.Command()
	command.Version = buildinfo.Version(version)
	if err := command.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "braid-trace:", err)
		os.Exit(1)
	}
}
