// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// startingTime is how long an agent may take from its pod's creation until it is ready:
	// its image may have to be pulled.
	startingTime = 2 * time.Minute
	startingLook = 500 * time.Millisecond
)

// awaitAgents waits for the agents that are about to start, as they are right after an
// installation. What does not start in time is left to who asks the agents.
func (p *plugin) awaitAgents(ctx context.Context, c client.Client, say io.Writer) error {
	begin, told := time.Now(), 0
	for time.Since(begin) < startingTime {
		starting, err := p.agentsStarting(ctx, c)
		if err != nil || starting == 0 {
			return err
		}
		if starting != told && time.Since(begin) > progressAfter {
			fmt.Fprintf(say, "kubectl braid: waiting for agents that are about to start: %d\n", starting)
			told = starting
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(startingLook):
		}
	}
	return nil
}

// agentsStarting is how many agents are to be ready soon; none where this may not be read.
func (p *plugin) agentsStarting(ctx context.Context, c client.Client) (int, error) {
	var set appsv1.DaemonSet
	err := c.Get(ctx, client.ObjectKey{Namespace: p.systemNamespace, Name: agentName}, &set)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading the agents' DaemonSet: %w", err)
	}
	if set.Status.ObservedGeneration < set.Generation {
		return 1, nil // how many is not known yet
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(p.systemNamespace), client.MatchingLabels{"app.kubernetes.io/name": agentName}); err != nil {
		return 0, fmt.Errorf("looking for the agents in namespace %s: %w", p.systemNamespace, err)
	}
	pending := slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
		return isPodReady(&pod) || pod.DeletionTimestamp != nil || p.clock.now().Sub(pod.CreationTimestamp.Time) > startingTime
	})
	return len(pending) + int(max(0, set.Status.DesiredNumberScheduled-set.Status.CurrentNumberScheduled)), nil
}

func isPodReady(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
		return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
	})
}
