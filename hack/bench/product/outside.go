// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

const outsidePolicy = `---
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata: {name: outside}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: demo}}
  podSelector: {matchLabels: {app: client}}
  paths: {outside: [{cidr: ` + network.WorldIPv4 + `}]}
  subflows: {manager: Agent}
`

// inWorld has three gateways by which a server outside of the cluster is reached. One pod's policy
// names that; no policy selects a second one.
func inWorld(ctx context.Context) (*rig.Lab, error) {
	spec := network.Spec{Paths: rig.Paths[:3], LinkMbit: rig.LinkMbit, World: true}
	l, err := rig.NewLab(ctx, spec, rig.PodOf("demo", "other", 1))
	if err != nil {
		return nil, err
	}
	err = l.ApplyPaths(ctx)
	if err == nil {
		err = l.Apply(ctx, outsidePolicy)
	}
	if err == nil {
		err = rig.Until(ctx, time.Minute, "the policy is programmed", func() (bool, error) {
			var policy v1alpha1.ClusterMPTCPPolicy
			if err := l.Client.Get(ctx, client.ObjectKey{Name: "outside"}, &policy); err != nil {
				return false, fmt.Errorf("reading the policy: %w", err)
			}
			return policy.Status.PodsProgrammed == 1 && meta.IsStatusConditionTrue(policy.Status.Conditions, v1alpha1.ConditionProgrammed), nil
		})
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// measureOutside compares one connection's goodput to a server outside with that of a pod that
// no policy selects, with the pod's own address and with the node's. Then each gateway dies.
func measureOutside(ctx context.Context, m *rig.Measurement, l *rig.Lab) (failed error) {
	world := l.Network.World
	address := net.JoinHostPort(world.IPv4, strconv.Itoa(lab.TrafficPort))
	serving, stop := context.WithCancel(ctx)
	listener, err := world.Listen(serving, "tcp", address)
	if err != nil {
		stop()
		return err
	}
	served := make(chan error, 1)
	go func() { served <- traffic.Serve(serving, listener) }()
	defer func() {
		stop()
		failed = errors.Join(failed, <-served)
	}()
	routes := map[bool]rig.Route{
		false: {From: l.Network.Pod("other").Namespace, To: address},
		true:  {From: l.Sender.Namespace, To: address},
	}
	if err := compareOutside(ctx, m, routes, "outside"); err != nil {
		return err
	}
	if err := killGateways(ctx, m, l, routes[true]); err != nil {
		return err
	}
	if err := l.Sender.Node.Masquerade(); err != nil {
		return err
	}
	return compareOutside(ctx, m, routes, "outside.masqueraded")
}

func compareOutside(ctx context.Context, m *rig.Measurement, routes map[bool]rig.Route, figure string) error {
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		for range m.Trials {
			mbit := map[bool]float64{}
			for all := range rig.Shuffled([]bool{false, true}) {
				options := steady
				options.Direction, options.Verify = direction, true
				result, err := routes[all].Transfer(ctx, options)
				if err == nil {
					err = rig.Intact(result)
				}
				if err != nil {
					return fmt.Errorf("%s, selected: %v: %w", direction, all, err)
				}
				mbit[all] = result.Mbit
			}
			m.Add(figure+".single_mbit", mbit[false])
			m.Add(figure+".ratio", mbit[true]/(3*mbit[false]))
			m.Add(fmt.Sprintf("%s.%s.ratio", figure, direction), mbit[true]/(3*mbit[false]))
		}
	}
	return nil
}

// killGateways takes each path's gateway away for a while. No NIC loses its carrier.
func killGateways(ctx context.Context, m *rig.Measurement, l *rig.Lab, route rig.Route) error {
	for _, path := range l.Network.Spec.Paths {
		rig.Say("the gateway of %s dies", path)
		running, err := route.Start(ctx, outageTransfer)
		if err != nil {
			return err
		}
		time.Sleep(outageBegins)
		err = l.Network.SetGateway(path, false)
		time.Sleep(outageEnds - outageBegins)
		err = errors.Join(err, l.Network.SetGateway(path, true))
		result, endErr := running.EndIntact()
		if err = errors.Join(err, endErr); err != nil {
			return fmt.Errorf("without the gateway of %s: %w", path, err)
		}
		m.Add("outside.failover_ms", result.LongestGapMs)
		time.Sleep(3 * time.Second) // the agent knows of it again
	}
	return nil
}
