// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
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
		Guardrails:        v1alpha1.Guardrails{Transport: &v1alpha1.TransportBounds{MaxInitialWindow: new(int32(20))}},
	}}
	c.Create(t, guardrail)
	policy := shopPolicy(v1alpha1.SubflowManagerNone)
	policy.Spec.Transport = &v1alpha1.Transport{
		CongestionControl: "cubic", InitialWindow: new(int32(40)), UserTimeout: &metav1.Duration{Duration: 20 * time.Second},
	}
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
	if err := errors.Join(c.Client.Delete(t.Context(), policy), c.Client.Delete(t.Context(), guardrail)); err != nil {
		t.Fatal(err)
	}
	testutil.Retry(t, 10*time.Second, func() error {
		socket, err := shown()
		if err == nil && strings.Contains(socket, " cubic ") {
			err = errors.New("the client's socket has still " + socket)
		}
		return err
	})
}
