// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/go-logr/logr"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/proxy"
)

// connects are as many connections as are opened to see how long one takes.
const connects = 21

// measureProxy compares a plain TCP connection of one VM, which its node's proxy takes, with
// all links.
func (h *hypervisors) measureProxy(ctx context.Context, m *rig.Measurement, single float64) error {
	if err := h.selectGuests(ctx, false); err != nil {
		return err
	}
	before, err := h.connect(ctx)
	if err != nil {
		return err
	}
	return h.proxied(ctx, func() error {
		after, err := h.connect(ctx)
		if err != nil {
			return err
		}
		m.Add("vm.proxy.connect_ms_added", float64(after-before)/float64(time.Millisecond))
		for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
			result, err := h.transfer(ctx, 1, network.TCP, direction)
			if err != nil {
				return err
			}
			name := "vm.proxy." + string(direction) + ".ratio"
			m.Add(name, result.Mbit/(single*float64(len(h.Network.Spec.Paths))))
			m.Add("vm.proxy.ratio", m.Last(name))
		}
		return nil
	})
}

// proxied runs f while the near node has a proxy that takes the VMs' connections.
func (h *hypervisors) proxied(ctx context.Context, f func() error) (err error) {
	const policy = "apiVersion: braid.dev/v1alpha1\nkind: MPTCPPolicy\nmetadata: {name: vms, namespace: demo}\n" +
		"spec: {podSelector: {matchLabels: {app: vm}}, sockets: {mode: Proxy}}\n"
	working, stop := context.WithCancel(ctx)
	served := make(chan error, 2)
	for _, node := range h.Network.Nodes[:2] {
		go func() { served <- h.serveProxy(working, node) }()
	}
	defer func() {
		stop()
		err = errors.Join(err, <-served, <-served, h.deletePolicy(ctx, "vms"))
	}()
	if err := errors.Join(h.Apply(ctx, policy), h.Settled(ctx, 2+2*guestPairs)); err != nil {
		return err
	}
	return f()
}

func (h *hypervisors) serveProxy(ctx context.Context, node *network.Node) error {
	inside, err := os.Open(node.Path())
	if err != nil {
		return fmt.Errorf("opening a node's network namespace: %w", err)
	}
	defer func() { _ = inside.Close() }()
	notes, err := os.MkdirTemp("", "proxy-")
	if err != nil {
		return fmt.Errorf("making a directory for notes: %w", err)
	}
	defer func() { _ = os.RemoveAll(notes) }()
	options := proxy.Options{Node: inside, StatePath: notes, Log: logr.Discard()}
	return proxy.Serve(ctx, options, h.StatePath(node.NodeName()), time.Second)
}

// connect is how long it takes to open a connection, the middle one of some.
func (h *hypervisors) connect(ctx context.Context) (time.Duration, error) {
	var took []time.Duration
	for range connects {
		began := time.Now()
		connection, err := h.near[0].DialBy(ctx, network.TCP, "tcp", net.JoinHostPort(h.far[0].IPv4, strconv.Itoa(lab.TrafficPort)))
		if err != nil {
			return 0, fmt.Errorf("opening a connection: %w", err)
		}
		took = append(took, time.Since(began))
		if err := connection.Close(); err != nil {
			return 0, fmt.Errorf("closing a connection: %w", err)
		}
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}
