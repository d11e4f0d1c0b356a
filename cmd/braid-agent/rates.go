// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/survey"
	"braid.dev/braid/internal/agentapi"
)

// rating says how to measure what subflows carry, and of which: those of a
// namespace, or of a pod as namespace/name, on a path; empty for all; and what NICs do.
type rating struct {
	of, path     string
	nics         []string
	every        time.Duration
	count, limit int
	attached     bool
}

func (i *inspection) ratesCommand() *cobra.Command {
	var options rating
	command := &cobra.Command{
		Use:   "rates [NAMESPACE[/NAME]]",
		Short: "Writes what subflows carry, one JSON object a line, as `kubectl braid top` reads it",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, arguments []string) error {
			if len(arguments) > 0 {
				options.of = arguments[0]
			}
			return i.rates(command, options)
		},
	}
	flags := command.Flags()
	flags.DurationVar(&options.every, "every", 2*time.Second, "time between two readings")
	flags.IntVar(&options.count, "count", 0, "how many lines to write; 0 for no end")
	flags.IntVar(&options.limit, "limit", 1000, "how many of the busiest subflows to write; 0 for all")
	flags.StringVar(&options.path, "path", "", "write of subflows on this path alone")
	flags.StringArrayVar(&options.nics, "nic", nil, "write also what this NIC carries, of whomever; may be given several times")
	addAttached(command, &options.attached)
	return command
}

func addAttached(command *cobra.Command, attached *bool) {
	command.Flags().BoolVar(attached, "attached", false, "end when the standard input does, as it does when the other side of kubectl exec goes")
}

// until is a context that ends with a signal and, for an attached command, with its
// standard input.
func until(command *cobra.Command, attached bool) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(command.Context(), unix.SIGINT, unix.SIGTERM)
	if attached {
		go func() {
			_, _ = io.Copy(io.Discard, command.InOrStdin()) // its end counts, however it comes
			stop()
		}()
	}
	return ctx, stop
}

// rates needs the agent: rates of subflows come from the pods' sockets too.
func (i *inspection) rates(command *cobra.Command, options rating) error {
	if options.every < 100*time.Millisecond {
		return fmt.Errorf("--every=%s: must be at least 100ms", options.every)
	}
	ctx, stop := until(command, options.attached)
	defer stop()
	client := inspect.NewClient(i.socket())
	defer client.Close()
	ticker := time.NewTicker(options.every)
	defer ticker.Stop()
	w := rateWriter{rating: options, encoder: json.NewEncoder(command.OutOrStdout())}
	for ctx.Err() == nil {
		err := w.write(ctx, client)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil || w.written == options.count && options.count > 0 {
			return err
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
	return nil
}

// wants is true for subflows that were asked for.
func (r *rating) wants(s *agentapi.Subflow) bool {
	return (r.path == "" || r.path == s.Path || r.path == s.StandIn || r.path == s.Incoming) &&
		(r.of == "" || r.of == s.Endpoint || strings.HasPrefix(s.Endpoint, r.of+"/"))
}

type rateWriter struct {
	rating
	encoder *json.Encoder
	meter   inspect.Meter
	nics    survey.Meter
	written int
}

// write asks the agent, and writes a line where there was a reading before.
func (w *rateWriter) write(ctx context.Context, client *inspect.Client) error {
	subflows, err := client.Subflows(ctx)
	if err != nil {
		return err
	}
	subflows = slices.DeleteFunc(subflows, func(s agentapi.Subflow) bool { return !w.wants(&s) })
	reading, known := w.meter.Read(time.Now(), subflows, w.limit)
	if reading.NICs, err = w.nics.Read(w.rating.nics); err != nil {
		return err
	}
	if !known {
		return nil
	}
	w.written++
	if err := w.encoder.Encode(reading); err != nil {
		return fmt.Errorf("writing rates: %w", err)
	}
	return nil
}
