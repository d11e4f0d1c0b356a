// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"time"

	"braid.dev/braid/agent/metrics"
	"braid.dev/braid/agent/paths"
)

// round is what one run of the agent's loop saw and did.
type round struct {
	news       *news
	resolution paths.Resolution
	attachMode string
	failed     error // what the datapath as a whole could not do
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
			a.log.Error(err, "trying again", "after", wait.String())
		}
	}
}

// publishNodes tells the other agents of each change on this node.
func (a *Agent) publishNodes(ctx context.Context) error {
	a.forEach(ctx, a.nodeRounds, func(ctx context.Context, r round) error {
		err := a.publishNode(ctx, r)
		if err == nil {
			a.ready.published(r)
		}
		return err
	})
	return nil
}

// managePods programs the pods and their chains, and says what became of the plan.
func (a *Agent) managePods(ctx context.Context) error {
	a.forEach(ctx, a.podRounds, func(ctx context.Context, r round) error {
		return a.measured.Measure(ctx, metrics.LoopPods, func() error { return a.managePodsOnce(ctx, r) })
	})
	return nil
}

func (a *Agent) managePodsOnce(ctx context.Context, r round) error {
	results, found, unfinished := a.pods.apply(ctx, r.news.planEndpoints())
	if a.origins.set(r.news.planEndpoints(), found) {
		a.wake()
	}
	guardErr := a.guarding.apply(r, found, results)
	ruleErr := a.rules.apply(ctx, planned{r.news.plan, r.resolution.Paths, found}, results)
	a.hints.report(r.news.planEndpoints(), results)
	if err := a.publishPlan(ctx, r.news.plan, results, r.failed); err != nil {
		return err
	}
	return errors.Join(unfinished, guardErr, ruleErr)
}
