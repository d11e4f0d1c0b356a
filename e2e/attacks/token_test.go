// SPDX-License-Identifier: Apache-2.0

package attacks_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/hack/lab"
)

// The token that was stolen is that of node3's agent, which runs on meanwhile.

func mergePatch(patch string) client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(patch))
}

func writeAsOtherNode(t *testing.T, s *scene) {
	other := metav1.ObjectMeta{Name: "node2"}
	lease := metav1.ObjectMeta{Namespace: lab.SystemNamespace, Name: v1alpha1.AgentLeasePrefix + "node2"}
	ctx, status := t.Context(), mergePatch(`{"status":{"pathsUp":0}}`)
	s.refused("another node's MPTCPNode", s.asAgent.Status().Patch(ctx, &v1alpha1.MPTCPNode{ObjectMeta: other}, status))
	s.refused("another node's plan's status", s.asAgent.Status().Patch(ctx, &v1alpha1.MPTCPNodePlan{ObjectMeta: other}, status))
	s.refused("an MPTCPNode of no node", s.asAgent.Create(ctx, &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node9"}}))
	s.refused("deleting another MPTCPNode", s.asAgent.Delete(ctx, &v1alpha1.MPTCPNode{ObjectMeta: other}))
	s.refused("its own plan", s.asAgent.Patch(ctx, &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node3"}}, mergePatch(`{"spec":{}}`)))
	s.refused("another agent's Lease", s.asAgent.Patch(ctx, &coordinationv1.Lease{ObjectMeta: lease}, mergePatch(`{"spec":{}}`)))
	s.refused("the Lease of the controller", s.asAgent.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lab.SystemNamespace, Name: "mallory"}}))
	s.refused("a policy", s.asAgent.Create(ctx, tenantPolicy("token")))
	s.refused("a guardrail", s.asAgent.DeleteAllOf(ctx, &v1alpha1.MPTCPGuardrail{}))
	s.refused("a path", s.asAgent.Create(ctx, &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "mallory"}}))
	s.refused("a Node", s.asAgent.Patch(ctx, &corev1.Node{ObjectMeta: other}, mergePatch(`{"metadata":{"labels":{"a":"b"}}}`)))
	s.refused("a pod", s.asAgent.Patch(ctx, pod("shop", "client"), mergePatch(`{"metadata":{"labels":{"a":"b"}}}`)))
	s.wait()
}

func readSecrets(t *testing.T, s *scene) {
	ctx := t.Context()
	for _, list := range []client.ObjectList{
		&corev1.SecretList{}, &corev1.PodList{}, &corev1.ConfigMapList{}, &corev1.NamespaceList{}, &corev1.ServiceAccountList{},
		&v1alpha1.MPTCPPolicyList{}, &v1alpha1.MPTCPGuardrailList{}, &v1alpha1.ClusterMPTCPPolicyList{}, &coordinationv1.LeaseList{},
	} {
		s.refused(fmt.Sprintf("listing %T", list), s.asAgent.List(ctx, list))
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: lab.SystemNamespace, Name: "braid-controller"}}
	s.refused("a token of the controller", s.asAgent.SubResource("token").Create(ctx, account, &authenticationv1.TokenRequest{}))
	s.refused("rights", s.asAgent.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "mallory"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}))
	s.wait()
}

// reportAs writes the status of node3's MPTCPNode as its agent does.
func (s *scene) reportAs(t *testing.T, change func(*v1alpha1.MPTCPNode)) error {
	own := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node3"}}
	if err := s.Get(t.Context(), own); err != nil {
		return err
	}
	before := client.MergeFrom(own.DeepCopy())
	change(own)
	return s.asAgent.Status().Patch(t.Context(), own, before)
}

// restoreNode starts the agent of node3 anew, which reports the truth.
func (s *scene) restoreNode(t *testing.T) {
	node := s.Network.Nodes[2]
	s.Kill(t, node)
	s.Start(t, node)
}

func fillNode(t *testing.T, s *scene) {
	t.Cleanup(func() { s.restoreNode(t) })
	for s.going() {
		err := s.reportAs(t, func(own *v1alpha1.MPTCPNode) {
			own.Status.Addresses = nil
			for i := range 64 {
				own.Status.Addresses = append(own.Status.Addresses, fmt.Sprintf("198.51.100.%d", i))
			}
			own.Status.KernelRelease = strings.Repeat("x", 400_000)
			for i := range own.Status.Paths {
				own.Status.Paths[i].Message = strings.Repeat("y", 100_000)
			}
		})
		// Too much is refused, and what is there may be anything.
		if err != nil && !strings.Contains(err.Error(), "Too long") && !strings.Contains(err.Error(), "may not be") {
			t.Logf("the report is refused: %v", err)
		}
		time.Sleep(10 * pace)
	}
}

func flapNode(t *testing.T, s *scene) {
	t.Cleanup(func() { s.restoreNode(t) })
	for i := 0; s.going(); i++ {
		err := s.reportAs(t, func(own *v1alpha1.MPTCPNode) {
			own.Status.Addresses = []string{fmt.Sprintf("198.51.100.%d", i%200)}
			for j := range own.Status.Paths {
				own.Status.Paths[j].State = []v1alpha1.LinkState{v1alpha1.LinkUp, v1alpha1.LinkDown}[i%2]
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(pace)
	}
}

// reportOthersPods: the agent of node3 says in its own plan's status that the victim's pods
// failed there.
func reportOthersPods(t *testing.T, s *scene) {
	t.Cleanup(func() { s.restoreNode(t) })
	victim := pod("shop", "client")
	if err := s.Get(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node3"}}
	if err := s.Get(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	before := client.MergeFrom(plan.DeepCopy())
	plan.Status.Endpoints = append(plan.Status.Endpoints, v1alpha1.EndpointStatus{
		UID: victim.UID, Namespace: "shop", Name: "client", PolicyGeneration: s.policy.Generation, State: v1alpha1.EndpointFailed, Message: "mallory",
	})
	if err := s.asAgent.Status().Patch(t.Context(), plan, before); err != nil {
		t.Fatal(err)
	}
	for s.going() {
		if err := s.Programmed(t.Context(), s.policy, 2); err != nil && len(s.policy.Status.FailingNodes) > 0 {
			s.escaped("the victim's policy tells of %+v", s.policy.Status.FailingNodes)
			break
		}
		time.Sleep(5 * pace)
	}
}

func readPlans(t *testing.T, s *scene) {
	ctx := t.Context()
	s.refused("listing all plans", s.asAgent.List(ctx, &v1alpha1.MPTCPNodePlanList{}))
	s.refused("another node's plan", s.asAgent.Get(ctx, client.ObjectKeyFromObject(&v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}), &v1alpha1.MPTCPNodePlan{}))
	private := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: lab.SystemNamespace, Name: "private"}}
	s.Create(t, private)
	t.Cleanup(func() { _ = s.Client.Delete(s.background(), private) })
	s.refused("a ConfigMap of Braid's namespace", s.asAgent.Get(ctx, client.ObjectKeyFromObject(private), &corev1.ConfigMap{}))
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: lab.SystemNamespace + v1alpha1.AgentsNamespaceSuffix, Name: v1alpha1.AgentAccountPrefix + "node1"}}
	request := func(seconds int64) *authenticationv1.TokenRequest {
		return &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	}
	s.refused("a token of another node's agent", s.asAllAgents.SubResource("token").Create(ctx, account, request(3600)))
	account.Name = v1alpha1.AgentAccountPrefix + "node3"
	s.refused("a token that lasts for a day", s.asAllAgents.SubResource("token").Create(ctx, account, request(24*3600)))
	s.wait()
}
