// SPDX-License-Identifier: Apache-2.0

// Command traffic moves bytes between the lab's pods and prints what arrived.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"braid.dev/braid/hack/lab/traffic"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "traffic", Short: "Measure the goodput of MPTCP connections", SilenceUsage: true}
	root.AddCommand(serveCommand(), runCommand(), waitCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

func serveCommand() *cobra.Command {
	var address string
	command := &cobra.Command{
		Use:   "serve",
		Short: "Answer `traffic run`",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			var config net.ListenConfig
			config.SetMultipathTCP(true)
			listener, err := config.Listen(command.Context(), "tcp", address)
			if err != nil {
				return fmt.Errorf("listening on %s: %w", address, err)
			}
			fmt.Println("listening on", listener.Addr())
			return traffic.Serve(command.Context(), listener)
		},
	}
	command.Flags().StringVar(&address, "listen", ":5001", "address and port to listen on")
	return command
}

// waitCommand is for containers in which `traffic run` is executed: a pod that
// listens is another thing to the path manager.
func waitCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "wait",
		Short: "Do nothing until told to end",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			<-command.Context().Done()
			return nil
		},
	}
}

func runCommand() *cobra.Command {
	var options traffic.Options
	var direction string
	var plain, asJSON bool
	command := &cobra.Command{
		Use:   "run ADDRESS:PORT",
		Short: "Move bytes to or from a server and print what arrived",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			options.Direction = traffic.Direction(direction)
			dial := traffic.Dial(args[0])
			if plain {
				dial = traffic.DialPlain(args[0])
			}
			result, err := traffic.Run(command.Context(), dial, options)
			if err != nil {
				return err
			}
			return show(result, asJSON)
		},
	}
	flags := command.Flags()
	flags.IntVar(&options.Connections, "connections", 1, "how many connections at once")
	flags.StringVar(&direction, "direction", string(traffic.Up), "up: to the server; down: from it")
	flags.DurationVar(&options.Duration, "duration", 5*time.Second, "how long to send")
	flags.DurationVar(&options.Warmup, "warmup", time.Second, "beginning that is left out of the measurement")
	flags.DurationVar(&options.Bin, "bin", 0, "length of a sample (default 10ms, 100ms for many connections)")
	flags.BoolVar(&options.Verify, "verify", false, "compare each byte that arrives with what was sent")
	flags.StringVar(&options.Congestion, "congestion", "", "congestion control of both ends (default: that of the pods)")
	flags.BoolVar(&plain, "plain", false, "use plain TCP instead of MPTCP")
	flags.BoolVar(&asJSON, "json", false, "print the whole result as JSON")
	return command
}

func show(result *traffic.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(result)
	}
	protocol := "TCP"
	if result.Multipath {
		protocol = "MPTCP"
	}
	fmt.Printf("%.1f Mbit/s over %d %s connection(s), subflows: %d, longest gap: %.0f ms, failed: %d\n",
		result.Mbit, len(result.ConnectionMbit), protocol, result.Subflows, result.LongestGapMs, result.Failed)
	return nil
}
