// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/hack/lab"
)

// Where the kernel cannot upgrade sockets the status says so and what to do, and
// the rest of the policy is carried out.
func TestPlainSocketsAreUpgradedOrTheStatusSaysWhyNot(t *testing.T) {
	c := use(t)
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
	policy.Spec.Sockets.Upgrade = true
	c.Spread(t, policy, 2)
	result := c.endpoint(t, "client")
	t.Logf("the upgrade is %s: %s", result.SocketUpgrade, result.Message)
	multipath := c.plainSocketIsMultipath(t, "client", "server")
	switch result.SocketUpgrade {
	case v1alpha1.SocketUpgradeActive:
		if !multipath {
			t.Error("a plain socket is not upgraded, though the status says so")
		}
	case v1alpha1.SocketUpgradeUnsupported:
		if multipath {
			t.Error("a plain socket is an MPTCP one, though the status says that the kernel cannot do it")
		}
		if !strings.Contains(result.Message, "docs/sockets.md") {
			t.Errorf("the message does not say what to do: %q", result.Message)
		}
	default:
		t.Errorf("the upgrade is %q", result.SocketUpgrade)
	}

	c.Update(t, policy, func() { policy.Spec.Sockets.Upgrade = false })
	c.WaitProgrammed(t, policy, 2)
	if c.plainSocketIsMultipath(t, "client", "server") || c.endpoint(t, "client").SocketUpgrade != "" {
		t.Error("sockets are upgraded though the policy asks for it no longer")
	}
}

// endpoint is the result of the agent for a pod.
func (c *cluster) endpoint(t *testing.T, pod string) v1alpha1.EndpointStatus {
	t.Helper()
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: c.Network.Pod(pod).Node.NodeName()}}
	if err := c.Get(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	for _, endpoint := range plan.Status.Endpoints {
		if endpoint.Name == pod {
			return endpoint
		}
	}
	t.Fatalf("the plan of %s says nothing of pod %s: %+v", plan.Name, pod, plan.Status)
	return v1alpha1.EndpointStatus{}
}

// plainSocketIsMultipath opens a connection with a socket that asks for TCP.
func (c *cluster) plainSocketIsMultipath(t *testing.T, from, to string) (multipath bool) {
	t.Helper()
	address := net.JoinHostPort(c.Network.Pod(to).IPv4, strconv.Itoa(lab.TrafficPort))
	err := c.Network.Pod(from).Do(func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var dialer net.Dialer
		dialer.SetMultipathTCP(false)
		connection, err := dialer.DialContext(ctx, "tcp", address)
		if err != nil {
			return err
		}
		defer connection.Close()
		multipath, err = connection.(*net.TCPConn).MultipathTCP()
		return err
	})
	if err != nil {
		t.Fatal(fmt.Errorf("opening a plain connection: %w", err))
	}
	return multipath
}
