// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// round is what one run of the agent's loop saw and did.
type round struct {
	snapshot   *snapshot
	resolution paths.Resolution
	model      *node.Model
	attachMode string
	key        uint64      // of encapsulated packets
	report     node.Report // of the urgent parts
	failed     error       // of these
}

// follow is the agent's loop: everything that happens leads to one and the same
// comparison of what is with what should be. Here is only what packets wait for; what
// takes its time, or waits for others, is done beside it.
func (a *Agent) follow(ctx context.Context) error {
	nics, err := a.network.Watch(ctx)
	if err != nil {
		return fmt.Errorf("failed to watch the node's NICs: %w", err)
	}
	ticker, look := time.NewTicker(resync), time.NewTicker(lookAtPins)
	defer ticker.Stop()
	defer look.Stop()
	for {
		if err := a.measured.Measure(ctx, metrics.LoopNode, func() error { return a.sync(ctx) }); err != nil && ctx.Err() == nil {
			a.log.Error(err, "failed to bring the node to its plan; trying again", "within", resync)
		}
		if err := a.await(ctx, nics, ticker.C, look.C); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// await waits until there is something to do. Without the pins nothing that is loaded counts
// any more: programs are detached, and what other processes read and limits go by is gone.
func (a *Agent) await(ctx context.Context, nics <-chan struct{}, again, look <-chan time.Time) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look:
			if err := a.builder.Lost(); err != nil {
				return err
			}
			continue
		case <-a.changed:
		case <-nics:
		case <-again:
		}
		return nil
	}
}

// sync does at once what is urgent, that a NIC which went down is avoided, and
// hands over the rest.
func (a *Agent) sync(ctx context.Context) error {
	snapshot, err := a.read(ctx)
	if errors.Is(err, errNothingKnown) {
		return nil
	} else if err != nil {
		return err
	}
	destinations := paths.OutsideOf(snapshot.plan)
	resolution, err := a.network.Resolve(paths.Query{
		Paths: snapshot.planPaths(), NodeAddresses: snapshot.nodeAddresses, Peers: snapshot.peers, Outside: destinations,
	})
	if err != nil {
		return fmt.Errorf("failed to find the NICs of the paths: %w", err)
	}
	if resolution.Again > 0 {
		time.AfterFunc(resolution.Again, a.wake)
	}
	peers := a.network.Lead(resolution.Paths, snapshot.peers)
	resolution.TellOfRouters(peers, snapshot.nodeAddresses, snapshot.pods)
	outside, err := a.network.LeadOutside(resolution.Paths, destinations)
	if err != nil {
		return fmt.Errorf("failed to find the gateways of the paths: %w", err)
	}
	model, err := a.builder.Build(node.Sources{
		Plan: snapshot.plan, Resolution: resolution, NodeAddresses: snapshot.nodeAddresses, PodRanges: snapshot.pods.Ranges, Peers: peers, Outside: outside,
	})
	a.unsteered.Set(float64(model.Unsteered))
	a.pathsHere.Set(pathsOf(model))
	r := round{snapshot: snapshot, resolution: resolution, model: model, report: applyAll(ctx, a.parts.urgent(), model)}
	r.report.Err = errors.Join(err, r.report.Err)
	r.failed = r.report.Err
	r.report.FailAll(model, r.failed)
	r.attachMode, r.key = a.parts.datapath.AttachMode(), a.parts.datapath.Key()
	a.nodeRounds.put(r)
	if !snapshot.saved || !a.source.patient.Load() {
		a.podRounds.put(r)
	}
	return r.failed
}

// pathsOf are the paths of the node for metrics, also those for which nothing can be done.
func pathsOf(model *node.Model) map[string]metrics.Path {
	all := make(map[string]metrics.Path, len(model.Paths))
	for i := range model.Paths {
		path := &model.Paths[i]
		all[path.Name] = metrics.Path{Up: path.Found.Usable, Interface: path.Found.Index, Capacity: path.Capacity}
	}
	return all
}

// applyAll applies the parts one after the other. One that fails does not keep the
// others from working.
func applyAll(ctx context.Context, parts []node.Part, model *node.Model) (report node.Report) {
	for _, part := range parts {
		report.Add(part.Apply(ctx, model))
	}
	return report
}

// applyBeside applies one part while it applies the others in their order.
func applyBeside(ctx context.Context, one node.Part, others []node.Part, model *node.Model) node.Report {
	beside := make(chan node.Report, 1)
	go func() { beside <- one.Apply(ctx, model) }()
	report := applyAll(ctx, others, model)
	report.Add(<-beside)
	return report
}

// latest passes rounds, or what became of them, on. One that nobody has taken yet is
// replaced.
type latest[T any] chan T

// put never waits. There must be one goroutine alone that calls it.
func (l latest[T]) put(one T) {
	select {
	case <-l:
	default:
	}
	l <- one
}

// What failed is tried again after firstRetry, then after twice as long each time.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// errUnfinished says that there is more to do soon, and that statuses tell why.
var errUnfinished = errors.New("not everything is as the plan says yet")

// errAwaitsPods says that pods are held as new ones that may be others, until it is found
// out who they are: the first processes of a pod begin right after it has its interface.
var errAwaitsPods = fmt.Errorf("interfaces of pods are there, and their pods not found: %w", errUnfinished)

// firstLook is when such pods are looked for again, and then after twice as long.
const firstLook = 50 * time.Millisecond

// forEach does something for each round, or for the latest of several, and again
// where it failed. Where more became known it only tells of that; both may be nil.
func forEach[T any](ctx context.Context, log logr.Logger, rounds latest[T], do func(context.Context, T) error, known <-chan struct{}, tell func(context.Context) error) {
	var current T
	var err error
	var retry <-chan time.Time
	var wait time.Duration
	for {
		select {
		case <-ctx.Done():
			return
		case current = <-rounds:
			wait, err = 0, do(ctx, current)
		case <-retry:
			wait, err = min(2*wait, lastRetry), do(ctx, current)
		case <-known:
			err = tell(ctx)
		}
		retry = nil
		if err == nil || ctx.Err() != nil {
			continue
		}
		if errors.Is(err, errAwaitsPods) {
			wait = max(wait, firstLook)
		} else {
			wait = max(wait, firstRetry)
		}
		retry = time.After(wait)
		if !errors.Is(err, errUnfinished) {
			log.Error(err, "failed to bring the pods to their plan, or to say so; trying again", "after", wait.String())
		}
	}
}

// publishNodes tells the other agents of each change on this node.
func (a *Agent) publishNodes(ctx context.Context) error {
	forEach(ctx, a.log, a.nodeRounds, func(ctx context.Context, r round) error {
		if r.snapshot.saved {
			return nil
		}
		err := a.publishNode(ctx, r)
		if err == nil {
			a.ready.published(r)
		}
		return err
	}, nil, nil)
	return nil
}

// managed is what the last round of the pods came to, without their rules.
type managed struct {
	round
	model *node.Model
}

// managePods has the patient parts applied, and says what became of the plan: at once,
// and again of rules when more is known.
func (a *Agent) managePods(ctx context.Context) error {
	measured := func(ctx context.Context, r round) error {
		return a.measured.Measure(ctx, metrics.LoopPods, func() error { return a.managePodsOnce(ctx, r) })
	}
	forEach(ctx, a.log, a.podRounds, measured, a.rulesKnown, a.tellOfPods)
	return nil
}

// publishPlans says what became of each plan. An API server that takes its time holds
// up no pod.
func (a *Agent) publishPlans(ctx context.Context) error {
	told := make(latest[outcome], 1)
	go gather(ctx, a.outcomes, told)
	forEach(ctx, a.log, told, a.publishPlan, nil, nil)
	return nil
}

func (a *Agent) managePodsOnce(ctx context.Context, r round) error {
	look, lookErr := a.finder.Look(r.model.Pods())
	if lookErr != nil {
		a.log.Error(lookErr, "failed to look for the pods' interfaces")
	}
	model, changed, err := a.builder.Find(r.model, look, lookErr == nil)
	if changed {
		a.wake()
	}
	patient := applyBeside(ctx, a.parts.held, a.parts.patient(), model)
	r.report = r.report.Clone()
	r.report.Add(patient)
	a.managed = managed{r, model}
	a.parts.rules.Apply(ctx, model)
	told := a.tellOfPods(ctx)
	if err = errors.Join(err, patient.Err); err != nil && errors.Is(told, errUnfinished) {
		return err
	}
	return errors.Join(err, told)
}

// tellOfPods has published what became of the plan so far.
func (a *Agent) tellOfPods(context.Context) error {
	m := &a.managed
	rules, report := a.parts.rules.Report(m.model), m.report.Clone()
	report.Add(rules)
	if report.Unknown {
		a.outcomes.put(outcome{m.snapshot, m.knownAlready(&report), m.failed})
		return m.unfinished()
	}
	err := errors.Join(rules.Err, a.release(cmp.Or(report.Applied, m.model), report))
	statuses := report.Statuses(m.model)
	a.outcomes.put(outcome{m.snapshot, statuses, m.failed})
	if err == nil && (report.Unfinished || !allProgrammed(statuses) || m.model.AwaitsPods()) {
		return m.unfinished()
	}
	return err
}

// knownAlready are the statuses while nobody knows yet what an earlier agent left of rules:
// pods that have or had some keep what that agent said, and others do not wait for them.
func (m *managed) knownAlready(report *node.Report) []v1alpha1.EndpointStatus {
	before := map[types.UID]*v1alpha1.EndpointStatus{}
	if plan := m.model.Plan; plan != nil {
		for i := range plan.Status.Endpoints {
			before[plan.Status.Endpoints[i].UID] = &plan.Status.Endpoints[i]
		}
	}
	statuses := report.Statuses(m.model)
	for i := range statuses {
		told := before[statuses[i].UID]
		if told != nil && (told.Chain != "" || m.model.Endpoints[i].Chain != "") {
			statuses[i] = *told
		}
	}
	return statuses
}

// unfinished says how soon there is more to do.
func (m *managed) unfinished() error {
	if m.model.AwaitsPods() {
		return errAwaitsPods
	}
	return errUnfinished
}

// release frees the numbers of what is gone when no part refers to them any more. The
// loop runs again where somebody may wait for one.
func (a *Agent) release(model *node.Model, report node.Report) error {
	if report.Err != nil {
		return nil
	}
	freed, err := a.builder.Applied(model, report.Unfinished)
	if freed {
		a.wake()
	}
	return err
}

func allProgrammed(statuses []v1alpha1.EndpointStatus) bool {
	for i := range statuses {
		if statuses[i].State != v1alpha1.EndpointProgrammed {
			return false
		}
	}
	return true
}
