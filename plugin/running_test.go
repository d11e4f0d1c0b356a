// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/plugin"
)

// addBraid adds a controller and the agents of nodes, as if they ran. Leases hold for so
// long.
func (s *scene) addBraid(lease time.Duration, nodes ...string) {
	s.t.Helper()
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	labels := map[string]string{"app.kubernetes.io/part-of": "braid"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}}}
	agents := &appsv1.DaemonSet{ObjectMeta: inSystem("braid-agent"), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
	s.create(agents, func() {
		wanted := int32(len(nodes))
		agents.Status = appsv1.DaemonSetStatus{ObservedGeneration: 1, DesiredNumberScheduled: wanted, UpdatedNumberScheduled: wanted, NumberReady: wanted}
	})
	controller := &appsv1.Deployment{ObjectMeta: inSystem("braid-controller"), Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}}
	s.create(controller, func() {
		controller.Status = appsv1.DeploymentStatus{ObservedGeneration: 1, Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	})
	s.addLease("braid-controller", time.Hour)
	for _, node := range nodes {
		s.addLease(v1alpha1.AgentLeasePrefix+node, lease)
	}
}

func inSystem(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "braid-system", Name: name}
}

func (s *scene) addLease(name string, duration time.Duration) {
	s.t.Helper()
	s.create(&coordinationv1.Lease{ObjectMeta: inSystem(name), Spec: coordinationv1.LeaseSpec{
		HolderIdentity: new(name), LeaseDurationSeconds: new(int32(duration.Seconds())), RenewTime: new(metav1.NowMicro()),
	}}, nil)
}

// addWeb is what a cluster in order has of a pod that spreads.
func (s *scene) addWeb() {
	s.t.Helper()
	s.addPath("blue")
	s.addNode("node1", v1alpha1.NodePath{Name: "blue", Interface: "ens1", State: v1alpha1.LinkUp, PeersProbed: 1, PeersAlive: 1, MedianRTTMicros: 240})
	pod := s.addPod("web", "node1")
	winner := s.addPolicy("spread", append(ready(v1alpha1.ConditionAccepted), ready(v1alpha1.ConditionProgrammed)...))
	s.addPlan("node1", s.decidedFor(pod), resultOf(pod, winner))
}

// statusSays runs status until its text has all this, and checks that nothing is fine.
func (s *scene) statusSays(says ...string) {
	s.t.Helper()
	testutil.Retry(s.t, time.Minute, func() error {
		out, err := s.run("status")
		if !errors.Is(err, plugin.ErrNotFine) {
			return errors.New("it is fine:\n" + out)
		}
		for _, one := range says {
			if !strings.Contains(out, one) {
				return errors.New("it does not say " + one + ":\n" + out)
			}
		}
		return nil
	})
}

// Objects outlive who wrote them: after the chart is gone all of them still say that they
// are fine.
func TestWithoutAgentsAndControllerNothingIsFine(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Hour, "node1")
	s.addWeb()
	_, err := s.run("status")
	require.NoError(t, err)

	for _, object := range []client.Object{&appsv1.DaemonSet{ObjectMeta: inSystem("braid-agent")}, &appsv1.Deployment{ObjectMeta: inSystem("braid-controller")}} {
		require.NoError(t, s.client.Delete(t.Context(), object))
	}
	s.statusSays("agents: NotInstalled", "controller: NotInstalled", "--system-namespace")
	out, err := s.run("status", "--wait=2s")
	require.ErrorIs(t, err, plugin.ErrNotFine, "old objects do not end the wait: %s", out)
	out, err = s.run("status", "--no-workloads")
	require.NoError(t, err, "Leases hold: %s", out)
}

func TestANodeWhoseAgentDiedIsNotFine(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Second, "node1")
	s.addWeb()
	s.statusSays("node node1: AgentNotReporting", "path blue: AgentNotReporting", "no agent reports on node1", "pod default/web on node1: AgentNotReporting")

	out, err := s.run("paths")
	require.NoError(t, err)
	require.Regexp(t, `node1 +blue +ens1 +Unknown +- +- +- +its agent renewed its Lease last`, out)
	out, err = s.run("explain", "web")
	require.NoError(t, err)
	require.Contains(t, out, "on the node: not known, nor whether its NICs work: its agent renewed its Lease last")
	require.NotContains(t, out, "Programmed")
}

func TestWaitingEndsWhenTheControllerHasSeenTheLastChange(t *testing.T) {
	s := newScene(t)
	s.addBraid(time.Hour, "node1")
	s.addWeb()
	var policy v1alpha1.MPTCPPolicy
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "spread"}, &policy))
	policy.Spec.Priority = 7
	require.NoError(t, s.client.Update(t.Context(), &policy))
	s.statusSays("policy default/spread: Pending")

	ended := make(chan error, 1)
	go func() {
		_, err := s.in(t).run("status", "--wait=1m")
		ended <- err
	}()
	for i := range policy.Status.Conditions {
		policy.Status.Conditions[i].ObservedGeneration = policy.Generation
	}
	require.NoError(t, s.client.Status().Update(t.Context(), &policy))
	var plan v1alpha1.MPTCPNodePlan
	require.NoError(t, s.client.Get(t.Context(), client.ObjectKey{Name: "node1"}, &plan))
	plan.Spec.Endpoints[0].Policy.Generation = policy.Generation
	require.NoError(t, s.client.Update(t.Context(), &plan))
	plan.Status.Endpoints[0].PolicyGeneration = policy.Generation
	require.NoError(t, s.client.Status().Update(t.Context(), &plan))
	require.NoError(t, <-ended)
}
