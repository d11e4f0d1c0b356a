// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// inRacks has three nodes in three racks: each path has a subnet in each of them, and a router
// that joins these and knows no other. A second pair of pods is not selected by the policy.
func inRacks(ctx context.Context) (*rig.Lab, error) {
	overlay, err := network.OverlayNamed("vxlan")
	if err != nil {
		return nil, err
	}
	return racks(ctx, overlay)
}

// inNativeRacks has no overlay: the first path's router knows the pods, and the others do not.
func inNativeRacks(ctx context.Context) (*rig.Lab, error) {
	l, err := racks(ctx, network.Overlay{})
	if err != nil {
		return nil, err
	}
	err = rig.Until(ctx, rig.Patience, "all nodes encapsulate to both others", func() (bool, error) {
		var nodes v1alpha1.MPTCPNodeList
		if err := l.Client.List(ctx, &nodes); err != nil {
			return false, fmt.Errorf("reading the nodes: %w", err)
		}
		bare := func(path v1alpha1.NodePath) bool { return path.Encapsulated < 2 }
		return !slices.ContainsFunc(nodes.Items, func(node v1alpha1.MPTCPNode) bool { return slices.ContainsFunc(node.Status.Paths, bare) }), nil
	})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func racks(ctx context.Context, overlay network.Overlay) (*rig.Lab, error) {
	spec := network.Spec{Nodes: 3, Racks: 3, Paths: rig.Paths[:3], LinkMbit: rig.LinkMbit, Overlay: overlay}
	l, err := rig.NewLab(ctx, spec, rig.PodOf("demo", "other", 1), rig.PodOf("demo", "server-other", 2))
	if err != nil {
		return nil, err
	}
	if err := l.Spread(ctx, ""); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func measureRouted(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	return measureRacks(ctx, m, l, "routed.")
}

func measureNativeRouted(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	return measureRacks(ctx, m, l, "routed.native.")
}

// measureRacks compares one connection's goodput over three links between racks with that
// of pods that no policy selects, over the same cluster network. Then the router of each path
// dies, and last all NICs compute and check their checksums by the processor.
func measureRacks(ctx context.Context, m *rig.Measurement, l *rig.Lab, of string) error {
	single := rig.Route{
		From: l.Network.Pod("other").Namespace,
		To:   net.JoinHostPort(l.Network.Pod("server-other").IPv4, strconv.Itoa(lab.TrafficPort)),
	}
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		for range m.Trials {
			mbit := map[bool]float64{}
			for all := range rig.Shuffled([]bool{false, true}) {
				route := single
				if all {
					route = l.Route(4)
				}
				options := steady
				options.Direction, options.Verify = direction, true
				result, err := route.Transfer(ctx, options)
				if err == nil {
					err = rig.Intact(result)
				}
				if err != nil {
					return fmt.Errorf("%s, selected: %v: %w", direction, all, err)
				}
				mbit[all] = result.Mbit
			}
			m.Add(of+"single_mbit", mbit[false])
			m.Add(of+"ratio", mbit[true]/(3*mbit[false]))
			m.Add(fmt.Sprintf("%s%s.ratio", of, direction), mbit[true]/(3*mbit[false]))
		}
	}
	if err := killRouters(ctx, m, l, of); err != nil {
		return err
	}
	return countChecksums(ctx, m, l, of+"checksum_errors")
}

// killRouters takes each path's router away for a while. No NIC loses its carrier.
func killRouters(ctx context.Context, m *rig.Measurement, l *rig.Lab, of string) error {
	for _, path := range l.Network.Spec.Paths {
		rig.Say("the router of %s dies", path)
		result, err := during(ctx, l,
			func() error { return l.Network.SetRouter(path, false) },
			func() error { return l.Network.SetRouter(path, true) })
		if err != nil {
			return fmt.Errorf("without the router of %s: %w", path, err)
		}
		m.Add(of+"failover_ms", result.LongestGapMs)
		time.Sleep(time.Second) // all is as before
	}
	return nil
}
