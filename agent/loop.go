// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	report     node.Report // of the urgent parts
}

// follow is the agent's loop: everything that happens leads to one and the same
// comparison of what is with what should be. Here is only what packets wait for; what
// takes its time, or waits for others, is done beside it.
func (a *Agent) follow(ctx context.Context) error {
	nics, err := a.network.Watch(ctx)
	if err != nil {
		return fmt.Errorf("failed to watch the node's NICs: %w", err)
	}
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	for {
		if err := a.measured.Measure(ctx, metrics.LoopNode, func() error { return a.sync(ctx) }); err != nil && ctx.Err() == nil {
			a.log.Error(err, "failed to bring the node to its plan; trying again", "within", resync)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-a.changed:
		case <-nics:
		case <-ticker.C:
		}
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
	resolution, err := a.network.Resolve(paths.Query{
		Paths: snapshot.planPaths(), NodeAddresses: snapshot.nodeAddresses, Peers: snapshot.peers,
	})
	if err != nil {
		return fmt.Errorf("failed to find the NICs of the paths: %w", err)
	}
	model, err := a.builder.Build(node.Sources{Plan: snapshot.plan, Resolution: resolution, Peers: snapshot.peers})
	a.unsteered.Set(float64(model.Unsteered))
	r := round{snapshot: snapshot, resolution: resolution, model: model, report: applyAll(ctx, a.parts.urgent(), model)}
	r.report.Err = errors.Join(err, r.report.Err)
	r.report.FailAll(model, r.report.Err)
	r.attachMode = a.parts.datapath.AttachMode()
	a.nodeRounds.put(r)
	if !snapshot.saved || !a.source.patient.Load() {
		a.podRounds.put(r)
	}
	return r.report.Err
}

// applyAll applies the parts one after the other. One that fails does not keep the
// others from working.
func applyAll(ctx context.Context, parts []node.Part, model *node.Model) (report node.Report) {
	for _, part := range parts {
		report.Add(part.Apply(ctx, model))
	}
	return report
}

// latest passes rounds on. One that nobody has taken yet is replaced.
type latest chan round

// put never waits. There must be one goroutine alone that calls it.
func (l latest) put(r round) {
	select {
	case <-l:
	default:
	}
	l <- r
}

// What failed is tried again after firstRetry, then after twice as long each time.
const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// errUnfinished says that there is more to do soon, and that statuses tell why.
var errUnfinished = errors.New("not everything is as the plan says yet")

// forEach does something for each round, or for the latest of several, and again
// where it failed.
func (a *Agent) forEach(ctx context.Context, rounds latest, do func(context.Context, round) error) {
	var current round
	var retry <-chan time.Time
	wait := firstRetry
	for {
		select {
		case <-ctx.Done():
			return
		case current = <-rounds:
			wait = firstRetry
		case <-retry:
			wait = min(2*wait, lastRetry)
		}
		retry = nil
		err := do(ctx, current)
		if err == nil || ctx.Err() != nil {
			continue
		}
		retry = time.After(wait)
		if !errors.Is(err, errUnfinished) {
			a.log.Error(err, "failed to bring the pods to their plan, or to say so; trying again", "after", wait.String())
		}
	}
}

// publishNodes tells the other agents of each change on this node.
func (a *Agent) publishNodes(ctx context.Context) error {
	a.forEach(ctx, a.nodeRounds, func(ctx context.Context, r round) error {
		if r.snapshot.saved {
			return nil
		}
		err := a.publishNode(ctx, r)
		if err == nil {
			a.ready.published(r)
		}
		return err
	})
	return nil
}

// managePods has the patient parts applied, and says what became of the plan.
func (a *Agent) managePods(ctx context.Context) error {
	a.forEach(ctx, a.podRounds, func(ctx context.Context, r round) error {
		return a.measured.Measure(ctx, metrics.LoopPods, func() error { return a.managePodsOnce(ctx, r) })
	})
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
	patient := applyAll(ctx, a.parts.patient(), model)
	report := r.report.Clone()
	report.Add(patient)
	err = errors.Join(err, patient.Err, a.release(model, report))
	statuses := report.Statuses(model)
	if err := a.publishPlan(ctx, r.snapshot, statuses, r.report.Err); err != nil {
		return err
	}
	if err == nil && (report.Unfinished || !allProgrammed(statuses)) {
		return errUnfinished
	}
	return err
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
