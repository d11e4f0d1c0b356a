// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"braid.dev/braid/agent"
	"braid.dev/braid/agent/leftovers"
	"braid.dev/braid/internal/output"
)

// errLeft says that something is left, and has been told.
var errLeft = errors.New("something of Braid is on this node; `braid-agent remove` removes it")

// leftoversCommand lists what `remove` would remove.
func leftoversCommand(options *agent.Options) *cobra.Command {
	var format output.Format
	var check bool
	command := &cobra.Command{
		Use:   "leftovers",
		Short: "Lists what Braid has put on this node: programs, pins, routes, rules, neighbours, settings of pods",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			left, err := leftovers.Find(leftovers.Options{PinPath: options.PinPath, StatePath: options.StatePath})
			if err != nil {
				return err
			}
			if format != output.Text {
				err = format.Write(command.OutOrStdout(), left)
			} else {
				fmt.Fprint(command.OutOrStdout(), leftText(left))
			}
			if err == nil && check && len(left) > 0 {
				err = errLeft
			}
			return err
		},
	}
	command.Flags().VarP(&format, "output", "o", "print for programs instead of people")
	command.Flags().BoolVar(&check, "check", false, "exit with 1 where something is left")
	return command
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
