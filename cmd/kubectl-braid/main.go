// SPDX-License-Identifier: Apache-2.0

// Command kubectl-braid is the plugin `kubectl braid`.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"braid.dev/braid/internal/buildinfo"
	"braid.dev/braid/plugin"
)

// version is set by the linker; without it the build's own version is used.
var version string

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	command := plugin.Command(os.Stdout, buildinfo.Version(version))
	command.SetArgs(arguments(os.Args))
	err := command.ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	if !errors.Is(err, plugin.ErrNotFine) {
		fmt.Fprintln(os.Stderr, "kubectl braid:", err)
	}
	os.Exit(1)
}

// arguments are those of the command. kubectl asks a program of another name,
// kubectl_complete-braid, to complete what a user types: a link to this one will do.
func arguments(all []string) []string {
	if strings.HasPrefix(filepath.Base(all[0]), "kubectl_complete-") {
		return append([]string{cobra.ShellCompRequestCmd}, all[1:]...)
	}
	return all[1:]
}
