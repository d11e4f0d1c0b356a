// SPDX-License-Identifier: Apache-2.0

package testlab

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/cilium/ebpf"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
)

// Kill kills the agents of nodes. When the test ends they run again.
func (c *Cluster) Kill(t testing.TB, nodes ...*network.Node) {
	t.Helper()
	for _, node := range nodes {
		agent := c.Agents[node.NodeName()]
		if err := agent.Stop(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if c.Agents[node.NodeName()] == agent {
				c.Start(t, node)
			}
		})
	}
}

// Start starts the agents of nodes, and waits until they have reported.
func (c *Cluster) Start(t testing.TB, nodes ...*network.Node) {
	t.Helper()
	for _, node := range nodes {
		started := time.Now()
		if err := c.StartAgent(context.Background(), node); err != nil {
			t.Fatal(err)
		}
		c.WaitFor(t, "the agent of "+node.NodeName()+" reports", 20*time.Second, func(ctx context.Context) error {
			return c.renewed(ctx, node.NodeName(), started)
		})
	}
}

// renewed: the agent of a node has renewed its Lease since a time.
func (c *Cluster) renewed(ctx context.Context, node string, since time.Time) error {
	var lease coordinationv1.Lease
	key := client.ObjectKey{Namespace: lab.SystemNamespace, Name: v1alpha1.AgentLeasePrefix + node}
	if err := c.Client.Get(ctx, key, &lease); err != nil {
		return fmt.Errorf("reading the Lease: %w", err)
	}
	if lease.Spec.RenewTime.Time.Before(since) {
		return fmt.Errorf("the agent of %s has not reported since %v", node, lease.Spec.RenewTime)
	}
	return nil
}

// Flows are the subflows that a node steers, and the slots of their paths.
func (c *Cluster) Flows(t testing.TB, node *network.Node) map[uplink.ToUplinkFlowKey]uint8 {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(c.PinPath(node.NodeName()), "datapath", "*", "flows"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("the pinned maps of flows are %v (%v)", pins, err)
	}
	pinned, err := ebpf.LoadPinnedMap(pins[0], nil)
	if err != nil {
		t.Fatalf("reading the flows of %s: %v", node.NodeName(), err)
	}
	defer pinned.Close()
	flows := map[uplink.ToUplinkFlowKey]uint8{}
	var key uplink.ToUplinkFlowKey
	var flow uplink.ToUplinkFlow
	entries := pinned.Iterate()
	for entries.Next(&key, &flow) {
		if flow.Ended == 0 {
			flows[key] = flow.Path
		}
	}
	if err := entries.Err(); err != nil {
		t.Fatalf("reading the flows of %s: %v", node.NodeName(), err)
	}
	return flows
}

// AgentMetrics are what the agent of a node counts, as Prometheus reads them.
func (c *Cluster) AgentMetrics(ctx context.Context, node *network.Node) (string, error) {
	out, err := node.Command(ctx, c.Binary("braid-agent"), "metrics", "--state-path", c.StatePath(node.NodeName())).Output()
	if err != nil {
		return "", fmt.Errorf("reading the agent's metrics: %w", err)
	}
	return string(out), nil
}

// AgentMetric is what the agent of a node says of one series.
func (c *Cluster) AgentMetric(t *testing.T, node *network.Node, series string) float64 {
	t.Helper()
	told, err := c.AgentMetrics(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(told, series+" ")
	text, _, _ = strings.Cut(text, "\n")
	value, err := strconv.ParseFloat(text, 64)
	if !found || err != nil {
		t.Fatalf("%s is not in %s", series, told)
	}
	return value
}
