// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
)

// changes gather what the plan reconciler has to look at in its next run.
type changes struct {
	*debouncer
	mu   sync.Mutex
	seen scope
}

// scope is what a run has to look at.
type scope struct {
	all    bool            // everything
	common bool            // what nodes have in common, such as policies: who is concerned is to be found out
	nodes  map[string]bool // their pods or plan changed
}

// newChanges begins with everything.
func newChanges(d *debouncer) *changes {
	return &changes{debouncer: d, seen: scope{all: true, nodes: map[string]bool{}}}
}

// take empties what was gathered.
func (c *changes) take() scope {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen := c.seen
	c.seen = scope{nodes: map[string]bool{}}
	return seen
}

func (c *changes) addAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.all = true
}

func (c *changes) addCommon() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.common = true
}

func (c *changes) add(nodes ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, node := range nodes {
		c.seen.nodes[node] = true
	}
}

// ofCommon handles events after which the plans of some nodes can be other ones.
func (c *changes) ofCommon() handler.EventHandler {
	return c.handlerFor(func(client.Object) { c.addCommon() })
}

// of handles events that concern the plans of some nodes.
func (c *changes) of(nodes func(client.Object) []string) handler.EventHandler {
	return c.handlerFor(func(object client.Object) { c.add(nodes(object)...) })
}

func (c *changes) handlerFor(note func(client.Object)) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) { note(e.Object); c.enqueue(q) },
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			note(e.ObjectOld) // A pod can be replaced by one of its name on another node.
			note(e.ObjectNew)
			c.enqueueUpdate(q, e.ObjectNew)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) { note(e.Object); c.enqueue(q) },
	}
}

// nodeNameField is the field of pods that the cache has an index of.
const nodeNameField = "spec.nodeName"

// nodeNameOf is the node of a pod.
func nodeNameOf(object client.Object) []string {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil
	}
	return []string{pod.Spec.NodeName}
}

// planNode is the node of a plan, which has its name.
func planNode(object client.Object) []string { return []string{object.GetName()} }
