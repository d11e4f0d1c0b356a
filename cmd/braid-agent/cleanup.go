// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"braid.dev/braid/agent"
	"braid.dev/braid/agent/leftovers"
	"braid.dev/braid/internal/output"
)

// errLeft says that something is left, and has been told.
var errLeft = errors.New("something of Braid is on this node; `braid-agent cleanup` removes it")

// cleanupCommand undoes what agents did here, for an uninstall, or lists it.
func cleanupCommand(options *agent.Options) *cobra.Command {
	var format output.Format
	var dryRun, check bool
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Removes everything of Braid from this node: programs, maps, routes, rules, neighbours, settings of pods",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if dryRun {
				return listLeft(command.OutOrStdout(), options, format, check)
			}
			options.Log = zap.New()
			return agent.Cleanup(command.Context(), *options)
		},
	}
	command.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and change nothing")
	command.Flags().VarP(&format, "output", "o", "with --dry-run, print for programs instead of people")
	command.Flags().BoolVar(&check, "check", false, "with --dry-run, exit with 1 where something would be removed")
	return command
}

func listLeft(to io.Writer, options *agent.Options, format output.Format, check bool) error {
	left, err := leftovers.Find(leftovers.Options{PinPath: options.PinPath, StatePath: options.StatePath, SavedPath: options.SavedPath})
	if err != nil {
		return err
	}
	if format != output.Text {
		err = format.Write(to, left)
	} else {
		_, err = fmt.Fprint(to, leftText(left))
	}
	if err == nil && check && len(left) > 0 {
		err = errLeft
	}
	return err
}

func leftText(left []leftovers.Left) string {
	if len(left) == 0 {
		return "nothing\n"
	}
	var b strings.Builder
	for _, one := range left {
		fmt.Fprintln(&b, strings.TrimSpace(fmt.Sprintf("%-10s %s  %s", one.Kind, one.Name, one.Detail)))
	}
	return b.String()
}
