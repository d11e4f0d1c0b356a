// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"

	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/internal/selftest"
)

// transferCommand runs in pods that `kubectl braid test` makes of the agents' image, which
// every node has.
func transferCommand() *cobra.Command {
	var listen string
	var options selftest.Options
	command := &cobra.Command{
		Use:   "transfer",
		Short: "Sends or counts the bytes of a connection, as `kubectl braid test` has its pods do",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			sends := options.Address != ""
			if sends == (listen != "") {
				return errors.New("give --listen or --to")
			}
			ctx, stop := until(command, sends)
			defer stop()
			if sends {
				encoder := json.NewEncoder(command.OutOrStdout())
				return selftest.Send(ctx, options, func(is agentapi.Transfer) error { return encoder.Encode(is) })
			}
			listener, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("listening: %w", err)
			}
			return selftest.Serve(ctx, listener)
		},
	}
	flags := command.Flags()
	flags.StringVar(&listen, "listen", "", "address and port to wait for connections at")
	flags.StringVar(&options.Address, "to", "", "address and port to send to")
	flags.BoolVar(&options.Multipath, "mptcp", false, "send by MPTCP")
	flags.DurationVar(&options.Duration, "for", 5*time.Second, "how long to send")
	flags.DurationVar(&options.Every, "every", 200*time.Millisecond, "time between two lines")
	return command
}
