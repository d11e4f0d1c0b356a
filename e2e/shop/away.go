// SPDX-License-Identifier: Apache-2.0

package shop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/agent/saved"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// WaitSaved waits until a node's agent has saved what the API server has.
func (c *Cluster) WaitSaved(t *testing.T, node *network.Node) {
	t.Helper()
	c.WaitFor(t, "the plan is saved", 10*time.Second, func(ctx context.Context) error {
		plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node.NodeName()}}
		file, err := saved.Read(c.SavedPath(node.NodeName()), node.NodeName())
		if err := c.Get(ctx, plan); err != nil {
			return err
		}
		if err != nil || file.Plan.Generation != plan.Generation || len(file.Nodes) != len(c.Network.Nodes) {
			return fmt.Errorf("%+v is saved (%w)", file, err)
		}
		return nil
	})
}

// RestartCold starts a node's agent without API server, and waits until it manages pods.
func (c *Cluster) RestartCold(t *testing.T, node *network.Node) {
	t.Helper()
	starts := func() int {
		log, err := os.ReadFile(c.Agents[node.NodeName()].Log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(log), "managing pods by the plan that was saved")
	}
	before := starts()
	if err := c.RestartAgent(node); err != nil {
		t.Fatal(err)
	}
	c.WaitFor(t, "the agent works by what was saved", 10*time.Second, func(context.Context) error {
		if starts() == before {
			return errors.New("its log does not say so")
		}
		return nil
	})
}

// StopServer stops the API server. When the test ends it runs again.
func (c *Cluster) StopServer(t *testing.T) {
	t.Helper()
	if err := c.Server.StopServer(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if c.Reachable() != nil {
			c.StartServer(t)
		}
	})
}

// Reachable asks the API server.
func (c *Cluster) Reachable() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return c.Client.List(ctx, &v1alpha1.MPTCPPathList{})
}

// StartServer starts it again, and the controller where that has ended.
func (c *Cluster) StartServer(t *testing.T) {
	t.Helper()
	if err := c.Server.StartServer(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.KeepController(t)
}

// KeepController starts the controller again, as a kubelet would: it ends when it
// loses its lease.
func (c *Cluster) KeepController(t *testing.T) {
	t.Helper()
	if !c.Controller.Ended() {
		return
	}
	t.Log("the controller had lost its lease and ended; it is started again")
	if err := c.StartController(context.Background()); err != nil {
		t.Fatal(err)
	}
}
