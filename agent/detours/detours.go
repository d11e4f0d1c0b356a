// SPDX-License-Identifier: Apache-2.0

// Package detours is the part of the agent that gives the cluster network's routes
// another way while the NIC that they point to cannot deliver: see paths.Detours.
package detours

import (
	"context"
	"fmt"

	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
)

// Detours are those of a node.
type Detours struct {
	node.Idle
	routes *paths.Detours
	view   func() health.View
}

var _ node.Part = (*Detours)(nil)

// Open prepares detours in the network namespace of the node's paths, which must stay
// open meanwhile. The view is what probes say of the paths.
func Open(network *paths.Node, view func() health.View) (*Detours, error) {
	routes, err := paths.NewDetours(network)
	if err != nil {
		return nil, fmt.Errorf("failed to watch the node's routes: %w", err)
	}
	return &Detours{routes: routes, view: view}, nil
}

// Apply brings the detours in line with the model's paths and peers.
func (d *Detours) Apply(_ context.Context, m *node.Model) (report node.Report) {
	view := d.view()
	state := paths.State{Lost: view.Lost(), Dead: view.Dead()}
	for _, path := range m.Paths {
		state.Paths = append(state.Paths, path.Found)
	}
	for _, peer := range m.Peers {
		state.Peers = append(state.Peers, peer.Peer)
	}
	_, report.Err = d.routes.Apply(state)
	return report
}

// Remove deletes all detours and their rules, also those of an earlier agent.
func (d *Detours) Remove(context.Context) error { return d.routes.Remove() }

// Close leaves the detours in place.
func (d *Detours) Close() error {
	d.routes.Close()
	return nil
}
