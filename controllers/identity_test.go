// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// waitForIdentity waits until the agent of a node has an identity with these rights in
// Braid's own namespace.
func (k *cluster) waitForIdentity(node string, configMaps ...string) {
	k.t.Helper()
	for _, want := range identity(node, k.system, configMaps) {
		k.eventually(func() error {
			current := empty(want)
			if err := k.Get(context.Background(), client.ObjectKeyFromObject(want), current); err != nil {
				return err
			}
			if !equality.Semantic.DeepEqual(grants(current), grants(want)) {
				return fmt.Errorf("%T %s grants %v, want %v", want, want.GetName(), grants(current), grants(want))
			}
			return nil
		})
	}
}

func TestIdentitiesAreWrittenOnceAndMended(t *testing.T) {
	k := newCluster(t)
	const nodes = 50
	for i := range nodes {
		k.node(fmt.Sprintf("node-%d", i), nil)
	}
	stop := k.startController(apiServer)
	for i := range nodes {
		k.waitForIdentity(fmt.Sprintf("node-%d", i))
	}
	stop()

	cfg, sent := watched(apiServer)
	k.startController(cfg)
	k.node("new", nil)
	k.waitForIdentity("new")
	k.waitForPods("new")
	// A plan, two roles and two bindings; the ServiceAccount is of the core group, which
	// is not counted.
	if got := sent.writes.Load(); got != 5 {
		t.Errorf("for one new node among %d there were %d writes, want 5", nodes, got)
	}

	role := &rbacv1.ClusterRole{}
	role.Name = v1alpha1.AgentAccountPrefix + "node-7"
	change(k, role, func(role *rbacv1.ClusterRole) { role.Rules = nil })
	k.waitForIdentity("node-7")
	account := &corev1.ServiceAccount{}
	account.Namespace, account.Name = k.system+v1alpha1.AgentsNamespaceSuffix, v1alpha1.AgentAccountPrefix+"node-8"
	k.delete(account)
	k.waitForIdentity("node-8")
}

func TestIdentitiesReadTheConfigMapsOfTheirPlan(t *testing.T) {
	k, _, ground := newRules(t)
	k.startController(apiServer)
	k.waitForIdentity("node-a")
	k.configMap("object")
	k.waitForIdentity("node-a", "programs")
	k.delete(ground)
	k.waitForIdentity("node-a")
}

func TestAnIdentityTakesOverNothingOfOthers(t *testing.T) {
	k := newCluster(t)
	theirs := &corev1.ServiceAccount{}
	theirs.Namespace, theirs.Name = k.system+v1alpha1.AgentsNamespaceSuffix, v1alpha1.AgentAccountPrefix+"node-a"
	k.create(theirs)
	node := k.node("node-a", nil)
	k.startController(apiServer)
	k.waitForIdentity("node-a")
	k.delete(node)
	k.waitUntilGone(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: theirs.Name}})
	if err := k.Get(context.Background(), client.ObjectKeyFromObject(theirs), theirs); err != nil {
		t.Errorf("an account that the controller did not make: %v", err)
	}
}
