// SPDX-License-Identifier: Apache-2.0

// Command kubectl-braid is the plugin `kubectl braid`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"braid.dev/braid/internal/buildinfo"
	"braid.dev/braid/plugin"
)

// version is set by the linker; without it the build's own version is used.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := plugin.Command(os.Stdout, buildinfo.Version(version)).ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	if !errors.Is(err, plugin.ErrNotFine) {
		fmt.Fprintln(os.Stderr, "kubectl braid:", err)
	}
	os.Exit(1)
}
