// SPDX-License-Identifier: Apache-2.0

// Package rules carries out the chains of the node's plan: in packets, in the pods'
// sockets, and by what a rule needs beside them. Each of its pieces is a part of its
// own; this package orders them.
package rules

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"braid.dev/braid/agent/atnic"
	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/inspect"
	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/pace/shared"
	"braid.dev/braid/agent/programs"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// Options of Rules.
type Options struct {
	// PinPath is the agent's directory on a BPF file system.
	PinPath string
	// StatePath is the agent's directory of states.
	StatePath string
	// NamespaceDirectories are where container runtimes mount network namespaces.
	NamespaceDirectories []string
	// ProcPath is where a proc file system with all processes of the machine is mounted.
	ProcPath string
	// ProgramDirectory holds programs of one's own as files; empty where the agent takes
	// none from there.
	ProgramDirectory string
	// ConfigMaps hold programs of one's own; nil where the agent takes none from there.
	ConfigMaps programs.ConfigMaps
	// Flows lists the flows of the uplinks; it must be safe for concurrent use.
	Flows func() ([]datapath.Flow, error)
	// Spreading is what pods' traffic does, for the debug commands; likewise.
	Spreading func() ([]agentapi.Spreading, error)
	// Notify is called when there is more to say of a model that was applied.
	Notify func()
	// NativeXDP has NICs drop what rules drop, where their drivers can.
	NativeXDP bool
	// Wake is called when there is more to say of NICs.
	Wake func()
	// Rounds measures how long that took.
	Rounds *metrics.Rounds
	Log    logr.Logger
}

// Rules are all that the plan's chains need. It works while it runs, beside Apply.
type Rules struct {
	worker worker
	begun  time.Time // with the first Apply
	// takesOver: an earlier agent left something.
	takesOver bool

	chains     *chains.Chains
	programs   *adminPrograms
	pacing     *pacing
	inspection *inspection
	statuses   statuses
	idle       *idleSubflows
	atNIC      *atnic.Part
	scheduler  *schedule.Scheduler
	// inSockets act in the pods' sockets, withChains beside the programs.
	inSockets, withChains []node.Part
}

var _ node.Part = (*Rules)(nil)

// chainPins is where the endpoint half is pinned, of the agent's directory.
const chainPins = "endpoints"

// Open prepares; nothing is done before Apply.
func Open(options Options) *Rules {
	pins := chains.Directory(filepath.Join(options.PinPath, chainPins))
	log := options.Log
	r := &Rules{programs: &adminPrograms{
		pins: pins, directory: options.ProgramDirectory, configMaps: options.ConfigMaps, log: log.WithName("programs"),
	}}
	r.chains = chains.Open(chains.Options{
		PinPath: filepath.Join(options.PinPath, chainPins), Programs: r.programs.slots, Log: log.WithName("chains"),
	})
	r.programs.chains = r.chains
	r.pacing = &pacing{chains: r.chains, programs: r.programs, log: log.WithName("pace"), Pacer: pace.Open(pace.Options{
		PinPath: pins, SharedPath: shared.Directory(options.PinPath), NamespaceDirectories: options.NamespaceDirectories, Proc: options.ProcPath, Log: log.WithName("pace"),
	})}
	r.inspection = openInspection(options, r.chains, pins)
	r.statuses = statuses{chains: r.chains, programs: r.programs, pacing: r.pacing, pins: r.inspection.pins, log: log}
	r.idle = newIdleSubflows(r.chains.WaitingSubflows, log.WithName("probes"))
	r.scheduler = schedule.Open(matching(r.chains), log.WithName("schedule"))
	r.inSockets = []node.Part{r.pacing, &scheduling{r.chains, r.scheduler, log}, &programSchedules{programs: r.programs}}
	r.atNIC = atnic.Open(atnic.Options{
		PinPath: options.PinPath, Native: options.NativeXDP, Chains: r.chains, Notify: options.Wake, Log: log.WithName("xdp"),
	})
	r.withChains = []node.Part{
		r.atNIC,
		&socketImport{chains: r.chains, pins: pins, log: log}, r.idle, &eventReceiver{inspection: r.inspection, log: log.WithName("events")}, r.inspection,
	}
	r.worker = worker{
		load: r.load, carryOut: func(ctx context.Context, model *node.Model) (report node.Report) {
			_ = options.Rounds.Measure(ctx, metrics.LoopRules, func() error { report = r.carryOut(ctx, model); return nil })
			return report
		},
		tell: options.Notify, handed: make(chan struct{}, 1),
	}
	return r
}

// ordered are all parts. What rules ask of sockets follows the chains, and is put back
// before the chains' maps go.
func (r *Rules) ordered(model *node.Model) []node.Part {
	inPackets := []node.Part{r.chains}
	if !wantsChains(model) {
		return slices.Concat([]node.Part{r.programs}, r.inSockets, inPackets, r.withChains)
	}
	return slices.Concat([]node.Part{r.programs}, inPackets, r.inSockets, r.withChains)
}

// wantsChains: some endpoint is to have a chain.
func wantsChains(model *node.Model) bool {
	return slices.ContainsFunc(model.Endpoints, func(endpoint node.Endpoint) bool {
		return endpoint.Chain != "" && endpoint.HostInterface != 0
	})
}

// Apply has the endpoints given their chains, and does not wait for that.
func (r *Rules) Apply(_ context.Context, model *node.Model) node.Report {
	if r.begun.IsZero() {
		r.begun, r.takesOver = time.Now(), r.chains.Exists()
	}
	r.worker.handOver(model)
	return r.Report(model)
}

// takingOver is how long nothing is said of pods while what an earlier agent left is taken
// over, so that a restart does not show in the statuses of pods with rules. It can take
// much longer where a pod has very many connections.
const takingOver = 2 * time.Second

// Report is what became of a model that was applied. Options.Notify tells that there is
// another.
func (r *Rules) Report(model *node.Model) node.Report {
	outcome := r.worker.outcome()
	report := outcome.reportOf(model)
	report.Unknown = outcome == nil && r.takesOver && time.Since(r.begun) < takingOver
	return report
}

// load loads the programs that all chains have in common. Where that fails carryOut says
// why.
func (r *Rules) load(model *node.Model) {
	if wantsChains(model) {
		_ = r.chains.Prepare()
	}
}

// carryOut gives the endpoints their chains.
func (r *Rules) carryOut(ctx context.Context, model *node.Model) (report node.Report) {
	if err := r.chains.TakeOver(); err != nil {
		report.Err = fmt.Errorf("failed to take over what an earlier agent pinned for chains: %w", err)
	}
	for _, part := range r.ordered(model) {
		report.Add(part.Apply(ctx, model))
	}
	r.statuses.describe(model, &report)
	return report
}

// Run carries out what is applied, and does what goes on beside that.
func (r *Rules) Run(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return r.worker.run(ctx) })
	for _, part := range r.ordered(&node.Model{}) {
		running.Go(func() error { return part.Run(ctx) })
	}
	return running.Wait()
}

// undoing is how long a removal waits for packets on which effects of rules can be
// undone.
const undoing = 2 * time.Second

// Remove brings the node to a model without rules, and then removes what is left. It must
// not be called beside Run.
func (r *Rules) Remove(ctx context.Context) error {
	probing, stop := context.WithTimeout(ctx, undoing)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- r.idle.Run(probing) }()
	var failed error
	for failed == nil {
		report := r.carryOut(ctx, &node.Model{})
		failed = report.Err
		if !report.Unfinished || probing.Err() != nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	failed = errors.Join(failed, <-ended)
	for _, part := range r.ordered(&node.Model{}) {
		failed = errors.Join(failed, part.Remove(ctx))
	}
	return failed
}

// Close leaves everything as it is.
func (r *Rules) Close() (failed error) {
	for _, part := range slices.Backward(r.ordered(&node.Model{})) {
		failed = errors.Join(failed, part.Close())
	}
	return failed
}

// Features says what this node can do for packets and in sockets, as far as an endpoint
// needed it.
func (r *Rules) Features() []v1alpha1.KernelFeature {
	features := r.pacing.Features()
	if chains := r.chains.Feature(); chains != nil {
		features = append(features, *chains)
	}
	return features
}

// AtNIC is what rules do at NICs.
func (r *Rules) AtNIC() *atnic.Part { return r.atNIC }

// SetRequests has a pod's connections scheduled as their peers ask, beside what its rules
// ask for.
func (r *Rules) SetRequests(path string, requests []schedule.Request, ended []schedule.Ends) error {
	return r.scheduler.SetRequests(path, requests, ended)
}

// Pins are what users see of rules and subflows, for metrics too.
func (r *Rules) Pins() *inspect.Pins { return r.inspection.pins }
