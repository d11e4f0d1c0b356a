// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"braid.dev/braid/internal/lab/network"
)

// Migration is how a machine was moved.
type Migration struct {
	// Began is when the hypervisors began to copy, and Stopped when the machine stood still.
	Began, Stopped time.Time
	// Still is how long it did, as its hypervisor says.
	Still time.Duration
}

// migrationPatience bounds what should take seconds.
const migrationPatience = 2 * time.Minute

// Migrate has the machine's hypervisor move it to another one, at another node, while it runs.
// The routes to its addresses lead there from the moment it stops. registered is called as soon
// as it runs there, to tell the API server; the hypervisor that it left ends after that.
func (l *Lab) Migrate(ctx context.Context, m *Machine, node *network.Node, registered func() error) (is Migration, err error) {
	ctx, cancel := context.WithTimeout(ctx, migrationPatience)
	defer cancel()
	place, err := m.SecondPlace(node)
	if err != nil {
		return is, err
	}
	incoming := "unix:" + l.machinePath(place, "migration")
	arguments := append(l.placed(m, place), "-incoming", incoming)
	target, err := l.start("machine-"+m.PodName+"-"+node.NodeName(), place.Command(context.Background(), "qemu-system-x86_64", arguments...))
	if err != nil {
		return is, errors.Join(err, place.DeletePlace())
	}
	before := m.at()
	if err = m.connect(ctx, l, place); err == nil {
		is, err = l.move(ctx, before, m.monitor, place, incoming)
	}
	if err != nil { // it goes on where it is
		m.settle(before)
		err = fmt.Errorf("migrating machine %s to %s: %w", m.PodName, node.NodeName(), err)
		return is, errors.Join(err, target.ended(), target.Stop(os.Kill), place.DeletePlace())
	}
	m.Pod, m.process = place, target
	l.pods[slices.Index(l.pods, before.process)] = target
	return is, errors.Join(registered(), before.monitor.close(), before.process.Stop(os.Kill), before.place.DeletePlace())
}

// whereabouts is where a machine runs, and the lines that lead there.
type whereabouts struct {
	place   *network.Pod
	process *Process
	monitor *monitor
	line    net.Conn
}

func (m *Machine) at() whereabouts {
	m.mu.Lock()
	defer m.mu.Unlock()
	return whereabouts{m.Pod, m.process, m.monitor, m.line}
}

func (m *Machine) settle(at whereabouts) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.monitor, m.line = at.monitor, at.line
}

// move copies the machine, and leads the routes to its new place while it stands still.
func (l *Lab) move(ctx context.Context, from whereabouts, target *monitor, to *network.Pod, incoming string) (is Migration, err error) {
	type capability struct {
		Capability string `json:"capability"`
		State      bool   `json:"state"`
	}
	source, events := from.monitor, map[string]any{"capabilities": []capability{{"events", true}}}
	is.Began = time.Now()
	if err := errors.Join(source.ask(ctx, "migrate-set-capabilities", events, nil), source.ask(ctx, "migrate", map[string]string{"uri": incoming}, nil)); err != nil {
		return is, err
	}
	if err := source.wait(ctx, "STOP", ""); err != nil {
		return is, err
	}
	is.Stopped = time.Now()
	if err := errors.Join(to.TakeOver(from.place), target.wait(ctx, "RESUME", ""), source.wait(ctx, "MIGRATION", "completed")); err != nil {
		return is, errors.Join(err, from.place.TakeOver(to))
	}
	var told struct {
		Downtime int64 `json:"downtime"` // ms
	}
	err = source.ask(ctx, "query-migrate", nil, &told)
	is.Still = time.Duration(told.Downtime) * time.Millisecond
	return is, err
}

// RemoveMachine switches a machine off and removes its place.
func (l *Lab) RemoveMachine(m *Machine) error {
	l.pods = slices.DeleteFunc(l.pods, func(p *Process) bool { return p == m.process })
	err := errors.Join(m.process.Stop(os.Kill), m.monitor.close(), m.Remove())
	if err != nil {
		return fmt.Errorf("removing machine %s: %w", m.PodName, err)
	}
	return nil
}
