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
	"braid.dev/braid/internal/lab/network"
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
	var keep, down, vm bool
	var clusterNetwork, suite string
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
			overlay, err := network.OverlayNamed(clusterNetwork)
			if err != nil {
				return err
			}
			if vm {
				machines := ofMachines
				machines.suite = suite
				return run(command.Context(), screen, machines, overlay, keep)
			}
			return run(command.Context(), screen, ofPods, overlay, keep)
		},
	}
	command.Flags().BoolVar(&keep, "keep", false, "leave the lab up and say how to use it")
	command.Flags().BoolVar(&down, "down", false, "remove a lab that was kept")
	command.Flags().StringVar(&clusterNetwork, "network", "native", "how nodes carry their pods' packets to each other: native, vxlan, vxlan6, vxlan-external")
	command.Flags().BoolVar(&vm, "vm", false, "between two virtual machines with stock kernels of Debian, in QEMU")
	command.Flags().StringVar(&suite, "suite", "trixie", "the Debian release whose kernel virtual machines boot, bookworm or trixie-backports for example")
	command.MarkFlagsMutuallyExclusive("keep", "down")
	command.MarkFlagsMutuallyExclusive("vm", "network")
	command.MarkFlagsMutuallyExclusive("vm", "keep")
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
