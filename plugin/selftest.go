// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/plugin/planes"
	"braid.dev/braid/plugin/trial"
)

// testOptions say between which nodes to test.
type testOptions struct {
	from, to string
	allPairs bool
	// duration is that of each of the measured phases.
	duration time.Duration
	// wait is how long pods may take to run, and to be programmed.
	wait time.Duration
}

// TestResult is what the self-test found.
type TestResult struct {
	Fine bool `json:"fine"`
	// FirstSpreadSeconds is when, since the command began, a connection was seen on all
	// paths; 0 where none was.
	FirstSpreadSeconds float64 `json:"firstSpreadSeconds,omitempty"`
	Pairs              []Pair  `json:"pairs"`
}

// Pair is what was measured between two nodes, and what it means.
type Pair struct {
	trial.Trial `json:",inline"`
	Verdict     []planes.Finding `json:"verdict"`
}

func (p *plugin) testCommand() *cobra.Command {
	options := testOptions{}
	command := &cobra.Command{
		Use:   "test",
		Short: "Send between two pods of its own, and say whether a connection really uses every NIC",
		Long: `Make a namespace with a pod on each of two nodes, of the agents' image, which the nodes
have, and a policy that selects these two. Send from one to the other by plain TCP, then by
MPTCP, and read meanwhile what the nodes' NICs carry. Then take a path from the policy while
a connection sends, and give it back. Say what works, what does not, and what to do.

It fills the nodes' NICs for a quarter of a minute. What it made it removes, also when it is
interrupted; the pods end by themselves after ten minutes in any case. The exit code is 1
where something failed.`,
		Example: "  kubectl braid test\n  kubectl braid test --from node1 --to node3\n  kubectl braid test --all-pairs -o json",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if options.allPairs && options.from+options.to != "" {
				return errors.New("give --all-pairs, or --from and --to")
			}
			return p.test(command, options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.from, "from", "", "node to send from (default: the first with an agent)")
	flags.StringVar(&options.to, "to", "", "node to send to (default: the next one)")
	flags.BoolVar(&options.allPairs, "all-pairs", false, "test each node with each other, one pair after the other")
	flags.DurationVar(&options.duration, "duration", 3*time.Second, "how long the NICs are looked at in each phase")
	flags.DurationVar(&options.wait, "timeout", time.Minute, "how long pods may take to run, and to be programmed")
	mustComplete(command, "from", p.names(&corev1.NodeList{}))
	mustComplete(command, "to", p.names(&corev1.NodeList{}))
	addSystem(command, &p.systemNamespace)
	return p.addFormat(command)
}

func (p *plugin) test(command *cobra.Command, options testOptions) (err error) {
	ctx := command.Context()
	t, err := p.newTester(ctx, command.ErrOrStderr(), options)
	if err != nil {
		return err
	}
	pairs, err := t.pairs()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.cleanUp(ctx)) }()
	if err := t.begin(ctx); err != nil {
		return err
	}
	result := TestResult{Fine: true, Pairs: []Pair{}}
	for _, pair := range pairs {
		found := Pair{Trial: t.try(ctx, pair)}
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", ctx.Err())
		}
		found.Verdict = found.Judge()
		result.Fine = result.Fine && trial.Fine(found.Verdict)
		result.Pairs = append(result.Pairs, found)
	}
	result.FirstSpreadSeconds = t.firstSpread.Seconds()
	if err := p.print(result, result.Text); err != nil {
		return err
	}
	if !result.Fine {
		return ErrNotFine
	}
	return nil
}

// Text is what the command prints.
func (r TestResult) Text() string {
	text := ""
	for i := range r.Pairs {
		pair := &r.Pairs[i]
		text += fmt.Sprintf("From %s to %s, one connection:\n\n", pair.From, pair.To)
		if pair.Plain != nil {
			text += table(pair.Rows()...) + "\n"
		}
		text += findingsText(pair.Verdict) + "\n"
	}
	if r.Fine {
		return text + "It works.\n"
	}
	return text + "Something does not work.\n"
}

// steps says what is being done, and for how long the command has run.
type steps struct {
	out   io.Writer
	begun time.Time
}

func (s *steps) say(format string, arguments ...any) {
	fmt.Fprintf(s.out, "%4.0f s  %s\n", time.Since(s.begun).Seconds(), fmt.Sprintf(format, arguments...))
}
