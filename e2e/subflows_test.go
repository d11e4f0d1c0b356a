// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

func TestAConnectionGetsItsSubflowsAfterSomeBytes(t *testing.T) {
	c := use(t)
	const bytes = 4 << 20 // a second of one path
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	policy.Spec.Subflows.OpenAfter = &v1alpha1.OpenAfter{Bytes: resource.NewQuantity(bytes, resource.BinarySI)}
	c.CreatePaths(t)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, 2)
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime))
	var first []traffic.Subflow
	c.WaitFor(t, "the connection has further subflows", 30*time.Second, func(context.Context) error {
		if subflows := r.Subflows(t); len(subflows) > 1 {
			first = subflows
			return nil
		}
		return fmt.Errorf("it has %+v", r.Subflows(t))
	})
	if acknowledged := total(first); acknowledged < bytes/2 { // the rest is under way
		t.Errorf("it got further subflows after %d bytes: %+v", acknowledged, first)
	}
	r.Finish(t)
	if r.Result.Subflows != len(paths) {
		t.Errorf("it ended with %d subflows, want %d", r.Result.Subflows, len(paths))
	}
}

func total(subflows []traffic.Subflow) (acknowledged uint64) {
	for _, subflow := range subflows {
		acknowledged += subflow.Sent
	}
	return acknowledged
}

func TestAFullMeshUsesAllAddressesOnAllNICs(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	policy.Spec.Subflows.Mode = v1alpha1.SubflowModeFullMesh
	c.CreatePaths(t)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, 2)
	r := c.Run(t, testlab.NewTransfer("client", "server", 6, traffic.Up, testlab.SpreadTime))
	if want := 2 * len(paths); r.Result.Subflows != want || len(r.Steady().Used()) != len(paths) {
		t.Errorf("a connection between pods of two addresses each has %d subflows and uses %v, want %d on all", r.Result.Subflows, r.Steady().Used(), want)
	}
}

func TestNDiffPortsSubflowsStayOnOneNIC(t *testing.T) {
	c := use(t)
	count := int32(3)
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	policy.Spec.Subflows.Mode, policy.Spec.Subflows.Count = v1alpha1.SubflowModeNDiffPorts, &count
	c.CreatePaths(t)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, 2)
	r := c.Run(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime))
	if r.Result.Subflows != int(count) || len(r.Steady().Used()) != 1 {
		t.Errorf("a connection has %d subflows and uses %v, want %d on one NIC", r.Result.Subflows, r.Steady().Used(), count)
	}
}

const serviceAddress, servicePort = "10.96.0.10", 80

// serve makes a pod's node translate the address of a Service to two backends in
// turn, as kube-proxy does.
func (c *cluster) serve(t *testing.T, node *network.Node, backends ...*network.Pod) {
	t.Helper()
	rules := fmt.Sprintf(`table ip services {
		chain prerouting {
			type nat hook prerouting priority dstnat
			ip daddr %s tcp dport %d dnat to numgen inc mod 2 map { 0 : %s, 1 : %s } : %d
		}
	}`, serviceAddress, servicePort, backends[0].IPv4, backends[1].IPv4, lab.TrafficPort)
	path := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(path, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := node.Run("nft", "delete", "table", "ip", "services"); err != nil {
			t.Error(err)
		}
	})
	if _, err := node.Run("nft", "-f", path); err != nil {
		t.Fatal(err)
	}
}

func TestConnectionsThroughAServiceUseAllNICs(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerAgent)
	tenant := testlab.NewPolicy("tenant", "server")
	tenant.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
	c.CreatePaths(t)
	c.Create(t, policy, tenant)
	c.WaitProgrammed(t, policy, 2)
	c.WaitProgrammed(t, tenant, 1)
	client := c.Network.Pod("client")
	c.serve(t, client.Node, c.Network.Pod("server"), c.Network.Pod("tenant-server"))
	for range 3 { // each backend has its turn
		r := c.BeginAt(t, testlab.NewTransfer("client", "server", 4, traffic.Up, testlab.SpreadTime), fmt.Sprintf("%s:%d", serviceAddress, servicePort))
		r.Finish(t)
		t.Logf("%.1f Mbit/s, %d subflows; %v", r.Result.Mbit, r.Result.Subflows, r.Steady())
		if r.Result.Subflows != len(paths) || len(r.Steady().Used()) != len(paths) {
			t.Errorf("a connection through the Service has %d subflows and uses %v", r.Result.Subflows, r.Steady().Used())
		}
	}
}
