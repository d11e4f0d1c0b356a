// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
)

// A policy's transport reaches a pod's sockets within its guardrail, and goes with it.
func TestSocketsGetTheTransportOfTheirPolicyWithinTheGuardrail(t *testing.T) {
	c := use(t)
	guardrail := &v1alpha1.MPTCPGuardrail{ObjectMeta: metav1.ObjectMeta{Name: "windows"}, Spec: v1alpha1.MPTCPGuardrailSpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "shop"}},
		Guardrails: v1alpha1.Guardrails{Transport: &v1alpha1.TransportBounds{
			MaxInitialWindow: new(int32(20)), MaxInactivityTimeout: &metav1.Duration{Duration: 2 * time.Minute},
		}},
	}}
	c.Create(t, guardrail)
	policy := shopPolicy(v1alpha1.SubflowManagerKernel)
	policy.Spec.Transport = &v1alpha1.Transport{
		CongestionControl: "cubic", InitialWindow: new(int32(40)), UserTimeout: &metav1.Duration{Duration: 20 * time.Second},
		InactivityTimeout: &metav1.Duration{Duration: 5 * time.Minute},
	}
	before := c.closeTimeout(t)
	c.Create(t, policy)
	c.WaitProgrammed(t, policy, 2)
	client, server := c.Network.Pod("client"), c.Network.Pod("server")
	listener, err := server.Listen(t.Context(), "tcp", net.JoinHostPort(server.IPv4, "7788"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	connection, err := client.Dial(t.Context(), "tcp", net.JoinHostPort(server.IPv4, "7788"))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	shown := func() (string, error) { return client.Run("ss", "-tinHO", "dport", "=", "7788") }
	if socket, err := shown(); err != nil || !strings.Contains(socket, " cubic ") || !strings.Contains(socket, "cwnd:20 ") {
		t.Errorf("the client has the socket %q: %v", socket, err)
	}
	if timeout := c.closeTimeout(t); timeout != "120" {
		t.Errorf("the client's connections without a subflow wait for %s seconds, not 120", timeout)
	}
	if err := errors.Join(c.Client.Delete(t.Context(), policy), c.Client.Delete(t.Context(), guardrail)); err != nil {
		t.Fatal(err)
	}
	testutil.Retry(t, 10*time.Second, func() error {
		socket, err := shown()
		if err == nil && strings.Contains(socket, " cubic ") {
			err = errors.New("the client's socket has still " + socket)
		}
		if timeout := c.closeTimeout(t); timeout != before {
			err = errors.Join(err, fmt.Errorf("the client's connections without a subflow wait for %s seconds, not %s as before", timeout, before))
		}
		return err
	})
}

// closeTimeout is how long connections of the client that have no subflow wait.
func (c *cluster) closeTimeout(t *testing.T) string {
	t.Helper()
	value, err := c.Network.Pod("client").Run("sysctl", "-n", "net.mptcp.close_timeout")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(value)
}
