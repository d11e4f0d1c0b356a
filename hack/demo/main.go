// SPDX-License-Identifier: Apache-2.0

// Command demo shows on one machine what Braid does: one connection between two
// pods that fills one NIC, then, by a policy, all three.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"braid.dev/braid/hack/lab"
)

// name of the lab, and so of its namespaces and its directory.
var name = "demo"

func main() {
	lab.RunRole()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command().ExecuteContext(ctx)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted; nothing is left behind")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var keep, down bool
	command := &cobra.Command{
		Use:           "demo",
		Short:         "Show one connection using all the NICs of its nodes",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			screen := newScreen(os.Stdout)
			if down {
				return takeDown(command.Context(), screen)
			}
			return run(command.Context(), screen, keep)
		},
	}
	command.Flags().BoolVar(&keep, "keep", false, "leave the lab up and say how to use it")
	command.Flags().BoolVar(&down, "down", false, "remove a lab that was kept")
	command.MarkFlagsMutuallyExclusive("keep", "down")
	return command
}

func takeDown(ctx context.Context, screen *screen) error {
	if os.Geteuid() != 0 {
		return errors.New("the lab can be removed by root alone")
	}
	if err := lab.Down(ctx, name, screen.remark); err != nil {
		return err
	}
	screen.say("The lab is removed.")
	return nil
}
