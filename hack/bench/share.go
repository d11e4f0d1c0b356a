// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
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
  guardrails: {tenantPaths: [{path: blue, weight: 1}]}
---
apiVersion: braid.dev/v1alpha1
kind: ClusterMPTCPPolicy
metadata: {name: gold-tenants}
spec:
  priority: 1
  namespaceSelector: {matchLabels: {tenant: gold}}
  podSelector: {}
  guardrailsOnly: true
  guardrails: {tenantPaths: [{path: blue, weight: 3}]}
`

// A sender is a pod that sends, with so many connections, to a server of its own
// tenant.
type sender struct {
	tenant, pod, server string
	connections         int
}

var senders = []sender{
	{"gold", "gold-1", "server-gold", 4},
	{"plain", "plain-1", "server-plain", 4}, {"plain", "plain-2", "server-plain", 4}, {"plain", "plain-3", "server-plain", 4},
}

// measureShare measures at the receivers' interfaces what two tenants get of a path
// that both would fill.
func measureShare(ctx context.Context, b *bench) (err error) {
	pods := []lab.Pod{demoPod("gold", "server-gold", 2), demoPod("plain", "server-plain", 2)}
	for _, one := range senders {
		pods = append(pods, demoPod(one.tenant, one.pod, 1))
	}
	o, err := newOutagesOn(ctx, network.Spec{Paths: pathNames[:1], LinkMbit: linkMbit}, pods...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.Down()) }()
	if err := o.guard(ctx); err != nil {
		return err
	}
	if err := b.share(ctx, o, "share.", senders); err != nil {
		return err
	}
	alone := slices.Clone(senders)
	alone[0].connections = 1
	return b.share(ctx, o, "share.one_connection.", alone)
}

func (b *bench) share(ctx context.Context, o *outages, prefix string, senders []sender) error {
	var off, used []float64
	for trial := range b.trials {
		rates, err := o.together(ctx, senders)
		if err != nil {
			return err
		}
		off = append(off, 100*math.Abs(rates["gold"]/rates["plain"]/3-1))
		used = append(used, (rates["gold"]+rates["plain"])/linkMbit)
		fmt.Printf("%strial %d: %.1f and %.1f Mbit/s on the wire, %.1f %% off 3:1\n", prefix, trial+1, rates["gold"], rates["plain"], off[trial])
	}
	b.add(prefix+"error_pct", "%", off)
	b.add(prefix+"path_used", "of its rate", used)
	return nil
}

// guard applies the guardrails and waits until the senders' node has them.
func (o *outages) guard(ctx context.Context) error {
	for _, tenant := range []string{"gold", "plain"} {
		if out, err := o.Kubectl(ctx, "label", "namespace", tenant, "tenant="+tenant).CombinedOutput(); err != nil {
			return fmt.Errorf("labelling a namespace: %w: %s", err, out)
		}
	}
	if err := o.apply(ctx, shareManifest); err != nil {
		return err
	}
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		var plan v1alpha1.MPTCPNodePlan
		err := o.Client.Get(ctx, client.ObjectKey{Name: o.client.Node.NodeName()}, &plan)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("reading the plan: %w", err)
		}
		if len(plan.Spec.Tenants) == 2 && plan.Status.ObservedGeneration == plan.Generation {
			return nil
		}
	}
	return errors.New("the guardrails were not programmed within a minute")
}

// together lets all pods send at once, and returns what each tenant's server got, in
// Mbit/s on the wire.
func (o *outages) together(ctx context.Context, senders []sender) (map[string]float64, error) {
	var sending sync.WaitGroup
	failed := make(chan error, len(senders))
	for _, one := range senders {
		from, to := o.Network.Pod(one.pod), o.Network.Pod(one.server)
		address := net.JoinHostPort(to.IPv4, strconv.Itoa(lab.TrafficPort))
		sending.Go(func() {
			_, err := traffic.Run(ctx, func(ctx context.Context) (net.Conn, error) { return from.Dial(ctx, "tcp", address) },
				traffic.Options{Connections: one.connections, Duration: shareWarmup + shareLasts})
			failed <- err
		})
	}
	time.Sleep(shareWarmup)
	before, err := o.received()
	time.Sleep(shareLasts - 500*time.Millisecond)
	after, afterErr := o.received()
	sending.Wait()
	close(failed)
	for one := range failed {
		err = errors.Join(err, one)
	}
	rates := map[string]float64{}
	for tenant := range after {
		rates[tenant] = float64(after[tenant]-before[tenant]) * 8 / 1e6 / (shareLasts - 500*time.Millisecond).Seconds()
	}
	return rates, errors.Join(err, afterErr)
}

// received are the bytes that went to each tenant's server.
func (o *outages) received() (map[string]uint64, error) {
	bytes := map[string]uint64{}
	for _, tenant := range []string{"gold", "plain"} {
		pod := o.Network.Pod("server-" + tenant)
		counters, err := pod.Node.Counters(pod.HostInterface)
		if err != nil {
			return nil, err
		}
		bytes[tenant] = counters.TxBytes
	}
	return bytes, nil
}
