// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

func TestWhatIsWrongWithANodeIsToldOfItAndOfItsPods(t *testing.T) {
	says := func(kind corev1.NodeConditionType, status corev1.ConditionStatus) func(*cluster) {
		return func(c *cluster) {
			c.nodes.Items[0].Status.Conditions = []corev1.NodeCondition{{Type: kind, Status: status, Reason: "KubeletNotReady", Message: "container runtime is down"}}
		}
	}
	renewedAt := func(ahead time.Duration) func(*cluster) {
		return func(c *cluster) {
			lease := heldLease("node1", time.Second)
			lease.Spec.RenewTime = new(metav1.NewMicroTime(renewed(lease).Add(ahead)))
			c.own = &components{now: twelve, leases: map[string]*coordinationv1.Lease{v1alpha1.AgentLeasePrefix + "node1": lease}}
		}
	}
	for name, test := range map[string]struct {
		change func(c *cluster)
		want   string // the reason, and a part of the message; empty where nothing is wrong
	}{
		"nothing":                     {says(corev1.NodeReady, corev1.ConditionTrue), ""},
		"its kubelet is silent":       {says(corev1.NodeReady, corev1.ConditionUnknown), "NodeNotReady: its kubelet has not reported"},
		"its kubelet is not ready":    {says(corev1.NodeReady, corev1.ConditionFalse), "NodeNotReady: its kubelet says that it is not ready: KubeletNotReady: container runtime is down"},
		"its disk is full":            {says(corev1.NodeDiskPressure, corev1.ConditionTrue), "DiskPressure: its disk is full"},
		"its disk is not full":        {says(corev1.NodeDiskPressure, corev1.ConditionFalse), ""},
		"its clock is an hour ahead":  {renewedAt(time.Hour), "ClockOff: its clock is 1h0m0s ahead of the API server's"},
		"its clock is a minute late":  {renewedAt(-time.Minute), "ClockOff: its clock is 1m0s behind the API server's"},
		"its clock is a little ahead": {renewedAt(10 * time.Second), ""},
		"its agent cannot save": {func(c *cluster) {
			c.members.Items[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionPlanNotSaved, Status: metav1.ConditionTrue, Message: "no space left on device"}}
		}, "PlanNotSaved: no space left on device"},
	} {
		t.Run(name, func(t *testing.T) {
			c, pod, namespaces := decided()
			test.change(c)
			status, told := c.status(), ""
			for _, problem := range append(status.Problems, status.Remarks...) {
				if problem.Object == "node node1" && problem.Reason != "Unknown" { // nobody judges Ready here
					told += problem.Reason + ": " + problem.Message
				}
			}
			explained := strings.Join(c.explain(pod, namespaces).Node, "")
			if test.want == "" {
				require.Empty(t, told+explained)
				return
			}
			require.Contains(t, told, test.want)
			require.Contains(t, explained, test.want)
			require.Contains(t, c.explain(pod, namespaces).text(), "node node1: "+test.want)
		})
	}
}

func TestOfManyNodesThoseWhosePodsSendAreAsked(t *testing.T) {
	asking := topperOf(topOptions{mostNodes: 2}, nil, nil, nil)
	ended := map[string]bool{}
	for i := range 5 {
		name := fmt.Sprintf("node%d", i)
		asking.nodes[name] = nodeTop{}
		asking.following[name] = &following{stop: func() { ended[name] = true }}
	}
	asking.limit(map[string]int{"node3": 7, "node1": 2, "node4": 1})
	require.Len(t, asking.nodes, 2)
	require.Contains(t, asking.nodes, "node3")
	require.Contains(t, asking.nodes, "node1")
	require.Equal(t, map[string]bool{"node0": true, "node2": true, "node4": true}, ended, "streams of others end")
	found := asking.snapshot()
	require.Contains(t, found.text(), "3 more nodes were not asked")
	asking.options.mostNodes = 0
	asking.limit(nil)
	require.Zero(t, asking.snapshot().NotAsked)
}

func TestPodsAreCountedByWhatTheirSocketsSpeak(t *testing.T) {
	status := Status{}
	for i, reason := range []string{v1alpha1.ReasonSpread, v1alpha1.ReasonLittleSent, v1alpha1.ReasonPlainTCP, v1alpha1.ReasonNothingSent, v1alpha1.ReasonUpgradeUnsupported} {
		pod := &v1alpha1.PlanEndpoint{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}
		status.addSockets("", pod, &v1alpha1.EndpointStatus{Spreading: &v1alpha1.SpreadingStatus{Reason: reason}})
		status.addSockets("its agent is silent", pod, &v1alpha1.EndpointStatus{Spreading: &v1alpha1.SpreadingStatus{Reason: reason}})
	}
	require.Contains(t, status.text(), "MPTCP in 2 pods, plain TCP in 2 (shop/web-2, shop/web-4), not known of 6\n")
	for range 20 {
		status.addSockets("", &v1alpha1.PlanEndpoint{Namespace: "shop", Name: "more"}, &v1alpha1.EndpointStatus{Spreading: &v1alpha1.SpreadingStatus{Reason: v1alpha1.ReasonPlainTCP}})
	}
	require.Len(t, status.Sockets.Plain, maxEnumerated)
	require.Contains(t, status.text(), "shop/more and 12 more)")
}
