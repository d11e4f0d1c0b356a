// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/output"
)

// Top is what the subflows carried in one interval.
type Top struct {
	// Total is how many subflows live on the nodes that were asked; the least busy
	// of them may be left out below.
	Total    int       `json:"total"`
	Subflows []Subflow `json:"subflows"`
	// NotAsked is how many nodes with such pods were not asked, because there are many.
	NotAsked int `json:"notAsked,omitempty"`
	// Problems are nodes that could not be read.
	Problems []Problem `json:"problems,omitempty"`
}

// Subflow is a living subflow as one of its pods sees it.
type Subflow struct {
	Node string `json:"node"`
	// Pod and Peer are namespace/name; Peer is empty where no policy selects it.
	Pod    string `json:"pod"`
	Peer   string `json:"peer,omitempty"`
	Local  string `json:"local"`
	Remote string `json:"remote"`
	// peerAddress is that of Remote.
	peerAddress netip.Addr
	// Path is empty while it is not known.
	Path string `json:"path,omitempty"`
	// StandIn is the path by which the pod's packets leave now, because Path does not
	// answer them; empty otherwise.
	StandIn string `json:"standIn,omitempty"`
	// Incoming is the path by which the peer's packets come, where that is not the one by
	// which the pod's leave; empty otherwise.
	Incoming string `json:"incoming,omitempty"`
	// SentBitsPerSecond and ReceivedBitsPerSecond are of payload.
	SentBitsPerSecond     uint64 `json:"sentBitsPerSecond"`
	ReceivedBitsPerSecond uint64 `json:"receivedBitsPerSecond"`
	// RTTMicroseconds is the smoothed round-trip time; 0 while not measured.
	RTTMicroseconds uint64 `json:"rttMicroseconds,omitempty"`
	Backup          bool   `json:"backup"`
	// Token names the connection, as in rules.
	Token string `json:"token,omitempty"`
}

// topOptions say what to show, and how.
type topOptions struct {
	systemNamespace, node, path string
	// nodes are asked alone; nil for all.
	nodes map[string]bool
	// paths shows NICs in the place of subflows.
	paths bool
	// namespace limits the pods; empty for all. pod is a name in it.
	namespace, pod string
	sort           string
	once           bool
	every          time.Duration
	limit          int
	// mostNodes are asked at a time, those first whose pods send; 0 for all.
	mostNodes int
}

func (o *topOptions) wantsNode(name string) bool {
	return (o.node == "" || o.node == name) && (o.nodes == nil || o.nodes[name])
}

// defaultNodes is how many agents can be asked in a second or less.
const defaultNodes = 50

const topExamples = `  kubectl braid top
  kubectl braid top web-0 --namespace shop --once
  kubectl braid top --path blue --sort rtt --output json
  kubectl braid top --paths
  kubectl braid top --paths --node node1 --once`

func (p *plugin) topCommand() *cobra.Command {
	var options topOptions
	command := &cobra.Command{
		Use:   "top [POD]",
		Short: "Show what each subflow carries now",
		Long: `Show the living subflows of all pods that a policy selects, or of one: their paths,
rates of payload, round-trip times, and which are backups.

In a cluster with more nodes than --nodes says, those are asked whose pods send, and how
many are left out is told.

In a terminal the table is kept up to date: left and right or a letter choose the column
to sort by, r reverses, up and down scroll, / filters, q leaves.

With --paths, show of each node and path what its NIC carries now, of whomever, which share
of the path's capacity that is, and how much of it is of those subflows.`,
		Example: topExamples,
		Args:    cobra.MaximumNArgs(1), ValidArgsFunction: p.podNames,
		RunE: func(command *cobra.Command, arguments []string) error {
			if err := p.selectPods(&options, arguments); err != nil {
				return err
			}
			return p.top(command, options)
		},
	}
	flags := command.Flags()
	flags.StringVar(&options.sort, "sort", "rate", "column to sort by: "+strings.Join(columnNames(), ", "))
	flags.BoolVar(&options.once, "once", false, "print one table; so it is where the output is no terminal")
	flags.DurationVar(&options.every, "every", 2*time.Second, "time between two readings")
	flags.IntVar(&options.limit, "limit", 1000, "how many of the busiest subflows each node tells of; 0 for all")
	flags.IntVar(&options.mostNodes, "nodes", defaultNodes, "how many nodes are asked at a time, those first whose pods send; 0 for all")
	flags.StringVar(&options.node, "node", "", "show this node's pods alone")
	flags.StringVar(&options.path, "path", "", "show this path alone")
	flags.BoolVar(&options.paths, "paths", false, "show what the NICs of nodes and paths carry")
	for _, ofSubflows := range []string{"sort", "limit"} {
		command.MarkFlagsMutuallyExclusive("paths", ofSubflows)
	}
	addSystem(command, &options.systemNamespace)
	mustComplete(command, "sort", cobra.FixedCompletions(columnNames(), cobra.ShellCompDirectiveNoFileComp))
	mustComplete(command, "node", p.names(&corev1.NodeList{}))
	mustComplete(command, "path", p.names(&v1alpha1.MPTCPPathList{}))
	return p.addFormat(command)
}

// selectPods takes the namespace that was asked for, and for a single pod the
// context's.
func (p *plugin) selectPods(options *topOptions, arguments []string) error {
	namespace, given, err := p.namespace()
	if err != nil {
		return err
	}
	if given || len(arguments) > 0 {
		options.namespace = namespace
	}
	if len(arguments) > 0 {
		options.pod = arguments[0]
	}
	if options.paths && options.namespace != "" {
		return errors.New("--paths is of NICs, which all pods of a node share: leave pod and namespace out")
	}
	if _, known := columnNamed(options.sort); !known {
		return fmt.Errorf("--sort=%s: must be one of %s", options.sort, strings.Join(columnNames(), ", "))
	}
	return nil
}

func (p *plugin) top(command *cobra.Command, options topOptions) error {
	ctx, cancel := context.WithCancel(command.Context())
	defer cancel()
	t, err := p.newTopper(ctx, options)
	if err != nil {
		return err
	}
	terminal, ok := terminalOf(p.out, command.InOrStdin())
	if ok && !options.once && p.format == output.Text {
		return t.interact(ctx, terminal, t.newView())
	}
	return p.topOnce(ctx, t)
}

// newView is what a terminal shows.
func (t *topper) newView() view {
	if t.options.paths {
		return &pathScreen{source: t}
	}
	v := &screen{}
	v.sort, _ = columnNamed(t.options.sort)
	return &subflowScreen{v, t}
}

func (p *plugin) topOnce(ctx context.Context, t *topper) error {
	patient, cancel := context.WithTimeout(ctx, t.options.every+askTimeout)
	defer cancel()
	t.startAll(patient, "--count=1")
	t.streams.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if t.options.paths {
		return p.printPathUses(t.pathSnapshot())
	}
	if err := t.namePeers(ctx); err != nil {
		return err
	}
	found := t.snapshot()
	column, _ := columnNamed(t.options.sort)
	sortSubflows(found.Subflows, column, false)
	if err := p.print(found, func() string { return found.text() }); err != nil {
		return err
	}
	if len(found.Problems) > 0 {
		return ErrNotFine
	}
	return nil
}

func (t *Top) text() string {
	rows := [][]string{columnTitles()}
	for i := range t.Subflows {
		rows = append(rows, cellsOf(&t.Subflows[i]))
	}
	text := table(rows...)
	if len(t.Subflows) == 0 {
		text = "no pod that a policy selects has a subflow\n"
	}
	if len(t.Subflows) < t.Total {
		text += fmt.Sprintf("%d of %d subflows\n", len(t.Subflows), t.Total)
	}
	return text + notAskedLine(t.NotAsked) + list("Not read", t.Problems)
}

func notAskedLine(count int) string {
	if text := notAskedText(count); text != "" {
		return text + "\n"
	}
	return ""
}

// column is one of the table.
type column struct {
	name, title string
	key         byte // chooses it in a terminal; 0 for none
	cell        func(*Subflow) string
	compare     func(a, b *Subflow) int
}

// columns are those of the table, in its order; rate sorts by both directions.
var columns = []column{
	{"pod", "POD", 'p', func(s *Subflow) string { return s.Pod }, func(a, b *Subflow) int { return strings.Compare(a.Pod, b.Pod) }},
	{"peer", "PEER", 'e', (*Subflow).peer, func(a, b *Subflow) int { return strings.Compare(a.peer(), b.peer()) }},
	{"path", "PATH", 'a', (*Subflow).carrier, func(a, b *Subflow) int { return strings.Compare(a.carrier(), b.carrier()) }},
	{"rate", "RATE", 's', func(s *Subflow) string { return rateText(s.rate()) }, func(a, b *Subflow) int { return cmp.Compare(b.rate(), a.rate()) }},
	{"sent", "SENT", 'u', func(s *Subflow) string { return rateText(s.SentBitsPerSecond) }, func(a, b *Subflow) int { return cmp.Compare(b.SentBitsPerSecond, a.SentBitsPerSecond) }},
	{"received", "RECEIVED", 'd', func(s *Subflow) string { return rateText(s.ReceivedBitsPerSecond) }, func(a, b *Subflow) int { return cmp.Compare(b.ReceivedBitsPerSecond, a.ReceivedBitsPerSecond) }},
	{"rtt", "RTT", 't', func(s *Subflow) string { return output.Duration(time.Duration(s.RTTMicroseconds) * time.Microsecond) }, func(a, b *Subflow) int { return cmp.Compare(b.RTTMicroseconds, a.RTTMicroseconds) }},
	{"backup", "BACKUP", 'b', (*Subflow).backup, func(a, b *Subflow) int { return strings.Compare(b.backup(), a.backup()) }},
	{"node", "NODE", 'n', func(s *Subflow) string { return s.Node }, func(a, b *Subflow) int { return strings.Compare(a.Node, b.Node) }},
}

func (s *Subflow) rate() uint64 { return s.SentBitsPerSecond + s.ReceivedBitsPerSecond }

// peer is the pod, with its port, or the address.
func (s *Subflow) peer() string {
	if s.Peer == "" {
		return s.Remote
	}
	return s.Peer + ":" + afterLast(s.Remote, ":")
}

func afterLast(text, separator string) string {
	return text[strings.LastIndex(text, separator)+len(separator):]
}

// carrier is the path that the subflow's data takes: most of it, where that is one path for
// each direction.
func (s *Subflow) carrier() string {
	if s.Incoming != "" && s.ReceivedBitsPerSecond > s.SentBitsPerSecond {
		return s.Incoming + ", sends by " + cmp.Or(s.StandIn, s.Path)
	}
	if s.StandIn != "" {
		return s.StandIn + ", not " + s.Path
	}
	return cmp.Or(s.Path, "-")
}

func (s *Subflow) backup() string {
	if s.Backup {
		return "yes"
	}
	return "-"
}

// ofColumns has a text of each column.
func ofColumns(text func(column) string) (texts []string) {
	for _, c := range columns {
		texts = append(texts, text(c))
	}
	return texts
}

func columnNames() []string { return ofColumns(func(c column) string { return c.name }) }

func columnTitles() []string { return ofColumns(func(c column) string { return c.title }) }

func cellsOf(s *Subflow) []string { return ofColumns(func(c column) string { return c.cell(s) }) }

func columnNamed(name string) (int, bool) {
	at := slices.IndexFunc(columns, func(c column) bool { return c.name == name })
	return at, at >= 0
}

// sortSubflows puts the most first, and names in their order; equals keep an order of
// their own, so that lines do not dance.
func sortSubflows(subflows []Subflow, by int, reverse bool) {
	slices.SortFunc(subflows, func(a, b Subflow) int {
		order := columns[by].compare(&a, &b)
		if reverse {
			order = -order
		}
		return cmp.Or(order, strings.Compare(a.Pod, b.Pod), strings.Compare(a.Remote, b.Remote),
			strings.Compare(a.Path, b.Path), strings.Compare(a.Local, b.Local))
	})
}

// rateText has three digits or so, whatever the unit.
func rateText(bitsPerSecond uint64) string {
	if bitsPerSecond == 0 {
		return "-"
	}
	scaled, units := float64(bitsPerSecond), []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"}
	for scaled >= 999.5 && len(units) > 1 {
		scaled, units = scaled/1000, units[1:]
	}
	decimals := 0
	if scaled < 99.95 && units[0] != "bit/s" {
		decimals = 1
	}
	return strconv.FormatFloat(scaled, 'f', decimals, 64) + " " + units[0]
}

var errNoReading = errors.New("the agent wrote nothing: is it older than this plugin?")
