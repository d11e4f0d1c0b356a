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

	"braid.dev/braid/internal/lab/traffic"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "traffic", Short: "Measure the goodput of MPTCP connections", SilenceUsage: true}
	root.AddCommand(serveCommand(), runCommand(), echoCommand(), holdCommand(), waitCommand())
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
			return listen(command.Context(), address, traffic.Serve)
		},
	}
	command.Flags().StringVar(&address, "listen", ":5001", "address and port to listen on")
	return command
}

func listen(ctx context.Context, address string, serve func(context.Context, net.Listener) error) error {
	var config net.ListenConfig
	config.SetMultipathTCP(true)
	listener, err := config.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", address, err)
	}
	fmt.Println("listening on", listener.Addr())
	return serve(ctx, listener)
}

func echoCommand() *cobra.Command {
	var address string
	command := &cobra.Command{
		Use:   "echo",
		Short: "Answer `traffic hold`",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return listen(command.Context(), address, traffic.Echo)
		},
	}
	command.Flags().StringVar(&address, "listen", ":5002", "address and port to listen on")
	return command
}

func holdCommand() *cobra.Command {
	options := traffic.HoldOptions{Patience: 30 * time.Second}
	command := &cobra.Command{
		Use:   "hold ADDRESS:PORT",
		Short: "Hold connections until told to end, and print each second as JSON what became of them",
		Args:  cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			holder, err := traffic.Hold(command.Context(), traffic.Dial(args[0]), options)
			if err != nil {
				return err
			}
			go tell(command.Context(), holder)
			holder.Run(command.Context())
			// Whoever reads the log is to find it also after all are lost.
			<-command.Context().Done()
			return nil
		},
	}
	command.Flags().IntVar(&options.Connections, "connections", 1, "how many connections")
	command.Flags().DurationVar(&options.Every, "every", 200*time.Millisecond, "rest between two exchanges on a connection")
	return command
}

func tell(ctx context.Context, holder *traffic.Holder) {
	for ctx.Err() == nil {
		_ = json.NewEncoder(os.Stdout).Encode(holder.Held()) // there is nobody else to tell
		time.Sleep(time.Second)
	}
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
	var sendBuffer int
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
			if sendBuffer > 0 {
				dial = dial.WithSendBuffer(sendBuffer)
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
	flags.DurationVar(&options.Patience, "patience", 0, "how long a receiver waits for the end of a stream after the duration (default 20s)")
	flags.IntVar(&sendBuffer, "send-buffer", 0, "bytes that the client's sockets hold (default: as many as the kernel finds useful)")
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
