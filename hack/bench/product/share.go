// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"math"
	"net"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Two tenants share a full path 3:1. The one with less tries harder: three pods with
// four connections each, against one pod with four, or with a single one.
const (
	shareWarmup = 3 * time.Second
	shareLasts  = 10 * time.Second
)

const shareManifest = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPath
metadata: {name: blue}
spec: {interfaces: [blue], capacity: 100M}
---
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata: {name: everybody}
spec:
  namespaceSelector: {matchExpressions: [{key: tenant, operator: Exists}]}
  podSelector: {}
  subflows: {count: 1}
---
apiVersion: braid.dev/v1alpha1
kind: MPTCPGuardrail
metadata: {name: everybody}
spec:
  namespaceSelector: {matchExpressions: [{key: tenant, operator: Exists}]}
  podSelector: {}
  tenantPaths: [{path: blue, weight: 1}]
---
apiVersion: braid.dev/v1alpha1
kind: MPTCPGuardrail
metadata: {name: gold-tenants}
spec:
  priority: 1
  namespaceSelector: {matchLabels: {tenant: gold}}
  podSelector: {}
  tenantPaths: [{path: blue, weight: 3}]
`

// A sender is a pod that sends to the server of its own tenant.
type sender struct{ tenant, pod string }

var senders = []sender{{"gold", "gold-1"}, {"plain", "plain-1"}, {"plain", "plain-2"}, {"plain", "plain-3"}}

// connections are how many each pod has, but for the case with one of the gold tenant.
const connections = 4

// newShare is a lab with a path and the pods and guardrails of both tenants.
func newShare(ctx context.Context) (*rig.Lab, error) {
	pods := []lab.Pod{rig.PodOf("gold", "server-gold", 2), rig.PodOf("plain", "server-plain", 2)}
	for _, one := range senders {
		pods = append(pods, rig.PodOf(one.tenant, one.pod, 1))
	}
	l, err := rig.NewLab(ctx, network.Spec{Paths: rig.Paths[:1], LinkMbit: rig.LinkMbit}, pods...)
	if err != nil {
		return nil, err
	}
	if err := guard(ctx, l); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// guard applies the guardrails and waits until the senders' node has them.
func guard(ctx context.Context, l *rig.Lab) error {
	for _, tenant := range []string{"gold", "plain"} {
		if _, err := l.RunKubectl(ctx, "label", "namespace", tenant, "tenant="+tenant); err != nil {
			return err
		}
	}
	if err := l.Apply(ctx, shareManifest); err != nil {
		return err
	}
	return rig.Until(ctx, time.Minute, "the guardrails are programmed", func() (bool, error) {
		var plan v1alpha1.MPTCPNodePlan
		err := l.Client.Get(ctx, client.ObjectKey{Name: l.Sender.Node.NodeName()}, &plan)
		return len(plan.Spec.Tenants) == 2 && plan.Status.ObservedGeneration == plan.Generation, client.IgnoreNotFound(err)
	})
}

// measureShare measures at the receivers' interfaces what two tenants get of a path
// that both would fill.
func measureShare(ctx context.Context, m *rig.Measurement, l *rig.Lab) error {
	for prefix, gold := range map[string]int{"share.": connections, "share.one_connection.": 1} {
		for range m.Trials {
			rates, err := together(ctx, l, gold)
			if err != nil {
				return err
			}
			rig.Say("%.1f and %.1f Mbit/s on the wire", rates["gold"], rates["plain"])
			m.Add(prefix+"error_pct", 100*math.Abs(rates["gold"]/rates["plain"]/3-1))
			m.Add(prefix+"path_used", (rates["gold"]+rates["plain"])/rig.LinkMbit)
		}
	}
	return nil
}

// together lets all pods send at once, and returns what each tenant's server got, in
// Mbit/s on the wire.
func together(ctx context.Context, l *rig.Lab, gold int) (map[string]float64, error) {
	var sending errgroup.Group
	for _, one := range senders {
		to := l.Network.Pod("server-" + one.tenant)
		route := rig.Route{From: l.Network.Pod(one.pod).Namespace, To: net.JoinHostPort(to.IPv4, strconv.Itoa(lab.TrafficPort))}
		options := traffic.Options{Connections: connections, Duration: shareWarmup + shareLasts}
		if one.tenant == "gold" {
			options.Connections = gold
		}
		sending.Go(func() error {
			_, err := route.Transfer(ctx, options)
			return err
		})
	}
	time.Sleep(shareWarmup)
	before, err := received(l)
	time.Sleep(shareLasts - 500*time.Millisecond)
	after, afterErr := received(l)
	for tenant := range after {
		after[tenant] = (after[tenant] - before[tenant]) * 8 / 1e6 / (shareLasts - 500*time.Millisecond).Seconds()
	}
	return after, errors.Join(err, afterErr, sending.Wait())
}

// received are the bytes that went to each tenant's server.
func received(l *rig.Lab) (map[string]float64, error) {
	bytes := map[string]float64{}
	for _, tenant := range []string{"gold", "plain"} {
		pod := l.Network.Pod("server-" + tenant)
		counters, err := pod.Node.Counters(pod.HostInterface)
		if err != nil {
			return nil, err
		}
		bytes[tenant] = float64(counters.TxBytes)
	}
	return bytes, nil
}
