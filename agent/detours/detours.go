// SPDX-License-Identifier: Apache-2.0

// Package detours is the part of the agent that gives the cluster network's routes
// another way while the NIC that they point to cannot deliver: see paths.Detours.
package detours

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/internal/logonce"
)

// Options of Detours.
type Options struct {
	// Network is the network namespace of the node's paths, which must stay open meanwhile.
	Network *paths.Node
	// View is what probes say of the paths.
	View func() health.View
	// StatePath is a directory that outlives the agent and not the machine's run, for what the
	// next agent must know; empty where it is told nothing.
	StatePath string
	// Notify has the model applied once more. It must not wait for that.
	Notify func()
	Log    logr.Logger
}

// Detours are those of a node.
type Detours struct {
	node.Idle
	options Options
	routes  *paths.Detours
	record  record
	failed  logonce.Error // the last error of writing the record
	again   *time.Timer   // when what an earlier agent said counts no more
}

var _ node.Part = (*Detours)(nil)

// Open prepares detours, and reads what an earlier agent knew of the node's routes.
func Open(options Options) (*Detours, error) {
	routes, err := paths.NewDetours(options.Network)
	if err != nil {
		return nil, fmt.Errorf("failed to watch the node's routes: %w", err)
	}
	d := &Detours{options: options, routes: routes, record: recordIn(options.StatePath)}
	left, err := d.record.read()
	if err != nil {
		options.Log.Error(err, "failed to read which routes the last agent knew: those of a NIC that was set down meanwhile get no detour")
	}
	routes.TakeOver(left)
	return d, nil
}

// Apply brings the detours in line with the model's paths and peers.
func (d *Detours) Apply(_ context.Context, m *node.Model) (report node.Report) {
	view := d.options.View()
	state := paths.State{Lost: view.Lost(), Dead: view.Dead()}
	if d.routes.Unconfirmed() > 0 {
		state.Alive = view.Alive()
	}
	for _, path := range m.Paths {
		state.Paths = append(state.Paths, path.Found)
	}
	for _, peer := range m.Peers {
		state.Peers = append(state.Peers, peer.Peer)
	}
	_, report.Err = d.routes.Apply(state)
	if lasts := d.routes.Unconfirmed(); lasts > 0 && d.again == nil {
		d.again = time.AfterFunc(lasts, d.options.Notify)
	}
	left := paths.Handover{}
	if len(m.Paths) > 0 { // or there is no detour to make
		left = d.routes.Handover()
	}
	d.failed.Log(d.options.Log, d.record.write(left), "failed to keep the node's routes for the next agent; trying again")
	return report
}

// Remove deletes all detours and their rules, also those of an earlier agent, and what was kept.
func (d *Detours) Remove(context.Context) error {
	return errors.Join(d.routes.Remove(), d.record.remove())
}

// Close leaves the detours in place.
func (d *Detours) Close() error {
	if d.again != nil {
		d.again.Stop()
	}
	d.routes.Close()
	return nil
}
