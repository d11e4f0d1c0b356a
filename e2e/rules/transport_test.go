// SPDX-License-Identifier: Apache-2.0

package rules_test

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/traffic"
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
	policy := shop.Policy(v1alpha1.SubflowManagerKernel)
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

// A rule of who receives asks the sender to pace the subflows of one path. What is lost of
// them is nobody's doing: the sender's socket sends no more.
func TestARuleAtThePeerPacesTheSubflowOfOnePath(t *testing.T) {
	c := use(t)
	sends := testlab.NewPolicy("shop", "server")
	sends.Name = "sends"
	sends.Spec.Transport = &v1alpha1.Transport{Accept: &v1alpha1.TransportAcceptance{
		From: []v1alpha1.CIDR{"0.0.0.0/0"}, MinRate: resource.NewQuantity(1e6, resource.DecimalSI),
	}}
	receives := testlab.NewPolicy("shop", "client")
	c.CreatePaths(t)
	for _, policy := range []*v1alpha1.MPTCPPolicy{sends, receives} {
		policy.Spec.Subflows.Manager = v1alpha1.SubflowManagerAgent
		c.Create(t, policy)
		c.WaitProgrammed(t, policy, 1)
	}
	r := c.Begin(t, testlab.NewTransfer("client", "server", 4, traffic.Down, 50*time.Second))
	testutil.Retry(t, 10*time.Second, func() error {
		if carrying := r.Carrying(t); carrying < len(paths) {
			return fmt.Errorf("%d subflows carry payload", carrying)
		}
		return nil
	})
	r.SleepUntil(4 * time.Second) // the first ones of a subflow are not paced
	own := receivedByPath(t, r, c)
	c.setRulesOf(t, receives, v1alpha1.Rule{
		Name: "metered", Match: &v1alpha1.Match{Selectors: v1alpha1.Selectors{Paths: []v1alpha1.PathName{"green"}, Direction: v1alpha1.DirectionToEndpoint}},
		Actions: []v1alpha1.Action{{Type: v1alpha1.ActionRateLimit, At: v1alpha1.ActionAtPeer, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}}},
	})
	c.awaitPaced(t, 1)
	time.Sleep(3 * time.Second) // what waits for the subflow goes out first
	asked := receivedByPath(t, r, c)
	t.Logf("without the rule %v Mbit/s, with it %v", own, asked)
	if green := asked["green"]; green < 19 || green > 21 {
		t.Errorf("the subflow of the path green carries %.1f Mbit/s, and is asked for 20", green)
	}
	for _, path := range []string{"blue", "red"} {
		if asked[path] < 0.95*own[path] {
			t.Errorf("the subflow of the path %s carries %.1f Mbit/s, and carried %.1f", path, asked[path], own[path])
		}
	}
	if rule := c.RuleNamed(t, "client", "metered"); rule.Hits == 0 || rule.Acted > 0 {
		t.Errorf("the rule matched %d packets and touched %d of them", rule.Hits, rule.Acted)
	}
	c.setRulesOf(t, receives)
	c.awaitPaced(t, 0)
	r.Finish(t)
}

func (c *cluster) setRulesOf(t *testing.T, policy *v1alpha1.MPTCPPolicy, rules ...v1alpha1.Rule) {
	t.Helper()
	c.Update(t, policy, func() { policy.Spec.Rules = rules })
	c.WaitProgrammed(t, policy, 1)
}

// awaitPaced waits until so many of the server's sockets are paced at 20 Mbit/s, and no
// others at anything.
func (c *cluster) awaitPaced(t *testing.T, count int) {
	t.Helper()
	testutil.Retry(t, 20*time.Second, func() error {
		sockets, err := c.Network.Pod("server").Run("ss", "-tinHO", "state", "established")
		if err != nil {
			return err
		}
		if paced, asked := len(maximum.FindAllString(sockets, -1)), strings.Count(sockets, "/20000000bps"); paced != count || asked != count {
			return fmt.Errorf("%d of the server's sockets are paced, and %d at what is asked for:\n%s", paced, asked, sockets)
		}
		return nil
	})
}

// maximum is what ss shows of a socket that is paced.
var maximum = regexp.MustCompile(`/\d+bps`)

// receivedByPath is what the subflows of each path bring in some seconds, in Mbit/s.
func receivedByPath(t *testing.T, r *testlab.Running, c *cluster) map[string]float64 {
	t.Helper()
	received := func() (time.Time, map[string]uint64) {
		of := map[string]uint64{}
		for _, subflow := range r.Subflows(t) {
			of[subflow.Local.String()+subflow.Remote.String()] = subflow.Received
		}
		return time.Now(), of
	}
	began, before := received()
	time.Sleep(5 * time.Second)
	ended, after := received()
	rates := map[string]float64{}
	for _, subflow := range c.SubflowsOf(t, r.From) {
		key := subflow.Local.String() + subflow.Remote.String()
		rates[cmp.Or(subflow.Incoming, subflow.Path)] += float64(after[key]-before[key]) * 8 / 1e6 / ended.Sub(began).Seconds()
	}
	return rates
}
