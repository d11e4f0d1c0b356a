// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/netip"

	"github.com/spf13/cobra"

	"braid.dev/braid/agent/survey"
	"braid.dev/braid/internal/output"
)

func surveyCommand() *cobra.Command {
	var ask, route []string
	command := &cobra.Command{
		Use:   "survey",
		Short: "Lists the node's NICs as JSON, and who answers on them, as `kubectl braid init` reads it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			question, err := questionOf(ask, route)
			if err != nil {
				return err
			}
			found, err := survey.Look(command.Context(), question)
			if err != nil {
				return fmt.Errorf("looking at the NICs: %w", err)
			}
			return output.JSON.Write(command.OutOrStdout(), found)
		},
	}
	command.Flags().StringSliceVar(&ask, "ask", nil, "ADDRESS%NIC: find out whether the address answers on the NIC")
	command.Flags().StringSliceVar(&route, "route", nil, "address: say which way packets to it take")
	return command
}

func questionOf(ask, route []string) (question survey.Question, err error) {
	for _, text := range ask {
		target, err := survey.ParseTarget(text)
		if err != nil {
			return question, fmt.Errorf("--ask=%w", err)
		}
		question.Ask = append(question.Ask, target)
	}
	for _, text := range route {
		address, err := netip.ParseAddr(text)
		if err != nil {
			return question, fmt.Errorf("--route=%w", err)
		}
		question.Route = append(question.Route, address)
	}
	return question, nil
}
