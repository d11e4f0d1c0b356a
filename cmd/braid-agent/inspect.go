// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"braid.dev/braid/agent"
	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/metricsserver"
)

// inspection is what the debug commands share.
type inspection struct {
	options *agent.Options
	format  inspect.Format
}

// addInspection adds the debug commands.
func addInspection(parent *cobra.Command, options *agent.Options) {
	i := &inspection{options: options}
	commands := []*cobra.Command{
		{
			Use:   "subflows [NAMESPACE/NAME]",
			Short: "Lists the subflows of this node's pods, or of one, and what limits them",
			Args:  cobra.MaximumNArgs(1), RunE: i.subflows,
		},
		{
			Use:   "rules [NAMESPACE/NAME]",
			Short: "Lists the rules of this node's pods, or of one, and what they did",
			Args:  cobra.MaximumNArgs(1), RunE: i.rules,
		},
		{
			Use:   "spreading [NAMESPACE/NAME]",
			Short: "Says what the traffic of this node's pods, or of one, does, and lately did on each path",
			Args:  cobra.MaximumNArgs(1), RunE: i.spreading,
		},
		i.eventsCommand(),
	}
	for _, command := range commands {
		command.Flags().VarP(&i.format, "output", "o", "print for programs instead of people")
	}
	parent.AddCommand(append(commands, i.ratesCommand(), i.metricsCommand())...)
}

func (i *inspection) metricsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "metrics",
		Short: "Prints the agent's metrics",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return metricsserver.Fetch(command.Context(), i.options.MetricsSocket(), command.OutOrStdout())
		},
	}
}

func (i *inspection) eventsCommand() *cobra.Command {
	var follow, attached bool
	command := &cobra.Command{
		Use:   "events",
		Short: "Lists the connections and subflows that rules reported lately",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return i.events(command, follow, attached)
		},
	}
	addAttached(command, &attached)
	command.Flags().BoolVarP(&follow, "follow", "f", false, "go on with those to come")
	return command
}

func (i *inspection) socket() string {
	return filepath.Join(i.options.StatePath, inspect.SocketName)
}

// pins reads what an agent left behind.
func (i *inspection) pins() (*inspect.Node, error) {
	names, err := inspect.OpenDirectory(filepath.Join(i.options.StatePath, inspect.DirectoryName))
	if err != nil {
		return nil, err
	}
	pins := inspect.NewPins(chains.Directory(filepath.Join(i.options.PinPath, "endpoints")), i.options.PinPath, names)
	if !pins.Exist() {
		return nil, fmt.Errorf("%w, and none left maps behind", inspect.ErrNoAgent)
	}
	flows := datapath.Open(datapath.Options{PinPath: i.options.PinPath})
	return &inspect.Node{Pins: pins, Flows: flows.PinnedFlows}, nil
}

func (i *inspection) subflows(command *cobra.Command, arguments []string) error {
	return list(i, command, arguments, (*inspect.Client).Subflows, (*inspect.Node).Subflows, inspect.PrintSubflows,
		func(s agentapi.Subflow) string { return s.Endpoint })
}

func (i *inspection) rules(command *cobra.Command, arguments []string) error {
	return list(i, command, arguments, (*inspect.Client).Rules, (*inspect.Node).Rules, inspect.PrintRules,
		func(r agentapi.Rule) string { return r.Endpoint })
}

// spreading needs the agent: nothing keeps what it saw.
func (i *inspection) spreading(command *cobra.Command, arguments []string) error {
	none := func(*inspect.Node) ([]agentapi.Spreading, error) { return nil, inspect.ErrNoAgent }
	return list(i, command, arguments, (*inspect.Client).Spreading, none, inspect.PrintSpreading,
		func(s agentapi.Spreading) string { return s.Endpoint })
}

// list asks the agent or, where none runs, reads what one left behind.
func list[T any](
	i *inspection, command *cobra.Command, arguments []string,
	ask func(*inspect.Client, context.Context) ([]T, error), read func(*inspect.Node) ([]T, error),
	write func(io.Writer, inspect.Format, []T) error, endpointOf func(T) string,
) error {
	client := inspect.NewClient(i.socket())
	defer client.Close()
	found, err := ask(client, command.Context())
	if errors.Is(err, inspect.ErrNoAgent) {
		var pins *inspect.Node
		if pins, err = i.pins(); err == nil {
			found, err = read(pins)
		}
	}
	if err != nil {
		return err
	}
	if len(arguments) > 0 {
		found = slices.DeleteFunc(found, func(one T) bool { return endpointOf(one) != arguments[0] })
	}
	return write(command.OutOrStdout(), i.format, found)
}

// events needs the agent: what nobody receives is lost.
func (i *inspection) events(command *cobra.Command, follow, attached bool) error {
	ctx, stop := until(command, attached)
	defer stop()
	client := inspect.NewClient(i.socket())
	defer client.Close()
	write := inspect.EventPrinter(command.OutOrStdout(), i.format)
	return client.Events(ctx, follow, func(event agentapi.Event) error { return write(event) })
}
