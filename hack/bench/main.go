// SPDX-License-Identifier: Apache-2.0

// Command bench measures what Braid gives and what it costs, in network
// namespaces of one machine. What is compared is measured in turns within one
// run; each figure is the median of its trials.
package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"braid.dev/braid/hack/bench/papers"
	"braid.dev/braid/hack/bench/product"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
)

// output is where the figures go.
const output = "_out/bench.json"

func main() {
	lab.RunRole()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// experiments are all there are, in the order in which they run.
func experiments(fleet *product.Fleet) []rig.Measurer {
	return slices.Concat(product.Experiments(fleet), papers.Experiments)
}

// choice is what the command line says.
type choice struct {
	only, cases string
	list        bool
	trials      int
	fleet       product.Fleet
}

func command() *cobra.Command {
	c := &choice{fleet: product.Fleet{Size: product.FullFleet}}
	command := &cobra.Command{
		Use:           "bench",
		Short:         "Measure goodput, fairness, cost and outages; writes " + output,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if c.list {
				return list(command.OutOrStdout(), experiments(&c.fleet))
			}
			return run(command.Context(), c)
		},
	}
	flags := command.Flags()
	flags.StringVar(&c.only, "only", "", "regular expression of the experiments to measure; the others keep the figures of the last run")
	flags.StringVar(&c.cases, "case", "", `regular expression of the cases of the experiments rate ("guests 5ms 5 Mbit/s"), buffers ("buffers.64k.slow.up"), middlebox ("middlebox.nat.all.up.default"), fct ("chain.flows1"), many ("many.connections100."), weights ("weights.connections1.default") and http ("http.1k.braid") to measure; their figures are printed, not kept`)
	flags.BoolVar(&c.list, "list", false, "list the experiments")
	flags.IntVar(&c.trials, "trials", 5, "how often each thing is measured")
	flags.IntVar(&c.fleet.Nodes, "nodes", c.fleet.Nodes, "nodes of the experiment controller; figures of fewer have names of their own")
	flags.IntVar(&c.fleet.Pods, "pods", c.fleet.Pods, "pods of the experiment controller")
	flags.IntVar(&c.fleet.Namespaces, "namespaces", c.fleet.Namespaces, "namespaces of the experiment controller")
	flags.IntVar(&c.fleet.Policies, "policies", c.fleet.Policies, "policies of the experiment controller")
	flags.StringVar(&c.fleet.Compared, "compare", "", "path of another build of braid-controller, which the experiment controller measures in turns with this tree's")
	return command
}

// list prints what each experiment measures.
func list(to io.Writer, all []rig.Measurer) error {
	table := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, one := range all {
		fmt.Fprintf(table, "%s\t%s\n", one.About().Name, one.About().Measures)
	}
	return table.Flush()
}

func run(ctx context.Context, c *choice) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the bench makes network namespaces: run it as root")
	}
	only, err := regexp.Compile(c.only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	options := rig.Options{Trials: c.trials}
	if options.Cases, err = regexp.Compile(c.cases); err != nil {
		return fmt.Errorf("--case: %w", err)
	}
	figures := rig.Figures{Figures: map[string]rig.Figure{}}
	if c.only != "" {
		if err := figures.Read(output); err != nil {
			return err
		}
	}
	for _, one := range experiments(&c.fleet) {
		if !only.MatchString(one.About().Name) {
			continue
		}
		measured, err := one.Measure(ctx, options)
		if err != nil {
			return err
		}
		maps.Copy(figures.Figures, measured)
		if c.cases != "" {
			continue
		}
		if err := figures.Write(output); err != nil {
			return err
		}
	}
	return figures.Print(os.Stdout)
}
