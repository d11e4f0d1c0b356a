// SPDX-License-Identifier: Apache-2.0

// Command bench measures what Braid gives and what it costs, in network
// namespaces of one machine. What is compared is measured in turns within one
// run; each figure is the median of its trials.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"syscall"

	"github.com/spf13/cobra"

	"braid.dev/braid/hack/bench/simulate"
	"braid.dev/braid/hack/lab"
)

// output is where the figures go.
const output = "_out/bench.json"

// part is a group of figures that are measured together.
type part struct {
	name    string
	measure func(context.Context, *bench) error
}

var parts = []part{
	{"cost", measureCost},
	{"spread", measureSpread},
	{"many", measureMany},
	{"outage", measureOutage},
	{"chain", measureChain},
	{"designs", measureDesigns},
	{"fct", measureOverhead},
	{"rate", measureRate},
	{"backup", measureBackup},
	{"hotswap", measureHotswap},
	{"ecf", measureECF},
	{"small", measureSmallFlows},
	{"hint", measureHint},
	{"blocked", measureBlocked},
	{"recover", measureRecover},
	{"share", measureShare},
	{"managers", measureManagers},
	{"failover1000", measureFailover1000},
	{"pod", measurePod},
	{"agent_memory", measureAgentMemory},
	{"http", measureHTTP},
	{"controller", measureController},
	{"upgrade", measureUpgrade},
	{"chaos", measureChaos},
}

// bench is one run.
type bench struct {
	*figures
	trials int
	// cases are those of the parts rate and fct to be measured.
	cases *regexp.Regexp
	// fleet is the cluster of the part controller, and compared the path of another
	// build of the controller to measure beside this tree's.
	fleet    simulate.Size
	compared string
}

func main() {
	lab.RunRole()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var only, cases string
	b := &bench{figures: newFigures(), fleet: fullFleet}
	command := &cobra.Command{
		Use:           "bench",
		Short:         "Measure goodput, fairness, cost and outages; writes " + output,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			return run(command.Context(), b, only, cases)
		},
	}
	command.Flags().StringVar(&only, "only", "", "regular expression of the parts to measure; the others keep the figures of the last run")
	command.Flags().StringVar(&cases, "case", "", `regular expression of the cases of the parts rate ("guests 5ms 5 Mbit/s") and fct ("chain.flows1") to measure; their figures are printed, not kept`)
	command.Flags().IntVar(&b.trials, "trials", 5, "how often each thing is measured")
	command.Flags().IntVar(&b.fleet.Nodes, "nodes", b.fleet.Nodes, "nodes of the part controller; figures of fewer have names of their own")
	command.Flags().IntVar(&b.fleet.Pods, "pods", b.fleet.Pods, "pods of the part controller")
	command.Flags().IntVar(&b.fleet.Namespaces, "namespaces", b.fleet.Namespaces, "namespaces of the part controller")
	command.Flags().IntVar(&b.fleet.Policies, "policies", b.fleet.Policies, "policies of the part controller")
	command.Flags().StringVar(&b.compared, "compare", "", "path of another build of braid-controller, which the part controller measures in turns with this tree's")
	return command
}

func run(ctx context.Context, b *bench, only, cases string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("the bench makes network namespaces: run it as root")
	}
	wanted, err := regexp.Compile(only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if b.cases, err = regexp.Compile(cases); err != nil {
		return fmt.Errorf("--case: %w", err)
	}
	if only != "" {
		if err := b.read(output); err != nil {
			return err
		}
	}
	for _, part := range parts {
		if !wanted.MatchString(part.name) {
			continue
		}
		if err := part.measure(ctx, b); err != nil {
			return fmt.Errorf("measuring %s: %w", part.name, err)
		}
		if cases != "" {
			continue
		}
		if err := b.write(output); err != nil {
			return err
		}
	}
	return b.print(os.Stdout)
}
