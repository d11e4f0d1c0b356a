// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/internal/agentapi"
)

// subflowEvent is what a rule reported on a node.
func subflowEvent(node string, r *agentapi.Event) Event {
	event := Event{Time: r.Time, Type: typeSubflow, Reason: string(r.Type), Node: node, policy: r.Policy, path: r.Path}
	if r.Endpoint == "" {
		event.Kind, event.Name = "Node", node
		event.Message = fmt.Sprintf("%d reports were not read in time", r.Count)
		return event
	}
	event.Kind = "Pod"
	event.Namespace, event.Name, _ = strings.Cut(r.Endpoint, "/")
	event.Message = subflowMessage(r)
	return event
}

func subflowMessage(r *agentapi.Event) string {
	text := fmt.Sprintf("%s -> %s", r.Local, r.Remote)
	if r.Path != "" {
		text += ", path " + r.Path
	}
	if r.Token != 0 {
		text += ", token " + r.Token.String()
	}
	if r.SentBytes+r.ReceivedBytes > 0 {
		text += fmt.Sprintf(", sent %d bytes, received %d", r.SentBytes, r.ReceivedBytes)
	}
	return text + fmt.Sprintf(" (rule %s of %s)", r.Rule, r.Policy)
}

// askedAtOnce bounds how many agents are asked at the same time.
const askedAtOnce = 32

// reported asks all agents for what they keep. Those that do not answer are named in
// the error, beside what the others have.
func (r *eventReader) reported(ctx context.Context) ([]Event, error) {
	agents, err := r.system.agents(ctx)
	if err != nil {
		return nil, err
	}
	var mutex sync.Mutex
	var found []Event
	var failed []error
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for node, agent := range agents {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, askTimeout)
			defer cancel()
			err := r.readReported(ctx, node, agent, func(event Event) {
				mutex.Lock()
				defer mutex.Unlock()
				found = append(found, event)
			}, "events", "--output=json")
			mutex.Lock()
			defer mutex.Unlock()
			failed = append(failed, err)
			return nil
		})
	}
	_ = group.Wait() // what failed is in failed
	return found, errors.Join(failed...)
}

// readReported calls visit for each report that is wanted.
func (r *eventReader) readReported(ctx context.Context, node string, agent *corev1.Pod, visit func(Event), arguments ...string) error {
	return r.system.ask(ctx, agent, &jsonLines[agentapi.Event]{visit: func(report *agentapi.Event) {
		if event := subflowEvent(node, report); r.wants(&event) {
			visit(event)
		}
	}}, arguments...)
}

// latestByNode is when the last report of each node was made.
func latestByNode(events []Event) map[string]time.Time {
	latest := map[string]time.Time{}
	for i := range events {
		if e := &events[i]; e.Type == typeSubflow && e.Time.After(latest[e.Node]) {
			latest[e.Node] = e.Time
		}
	}
	return latest
}

// followAgain is when an agent is asked again whose stream ended, as it does when the
// agent is replaced.
const followAgain = 5 * time.Second

// followReported follows all agents until the context ends.
func (r *eventReader) followReported(ctx context.Context, known map[string]time.Time, incoming chan<- Event, warn func(error)) {
	agents, err := r.system.agents(ctx)
	if err != nil {
		warn(err)
		return
	}
	for node := range agents {
		go r.followNode(ctx, node, known[node], incoming, warn)
	}
}

// followNode leaves out what is known: an agent begins with what it keeps.
func (r *eventReader) followNode(ctx context.Context, node string, known time.Time, incoming chan<- Event, warn func(error)) {
	for ctx.Err() == nil {
		agents, err := r.system.agents(ctx)
		if err == nil && agents[node] != nil {
			err = r.readReported(ctx, node, agents[node], func(event Event) {
				if event.Time.After(known) {
					known = event.Time
					send(ctx, incoming, event)
				}
			}, "events", "--output=json", "--follow", "--attached")
		}
		if err != nil && ctx.Err() == nil {
			warn(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(followAgain):
		}
	}
}
