// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/policy"
)

func TestAgentsAnswerThePlansOfObjectsThatWereCreated(t *testing.T) {
	server := apiserver.ForTest(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	c, err := client.New(server.Config(), client.Options{Scheme: NewScheme()})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "system"}}); err != nil {
		t.Fatal(err)
	}
	objects := Size{Nodes: 3, Pods: 9, Namespaces: 2, Policies: 10}.Objects()
	if err := objects.Create(ctx, c, t.Logf); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	nodes := []string{Node(0), Node(1), Node(2)}
	agents, err := StartAgents(running, server.Config(), "system", nodes, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { stop(); agents.Wait() }()

	seen := agents.Expect(nodes, func(plan *v1alpha1.MPTCPNodePlan) bool { return plan != nil && len(plan.Spec.Endpoints) == 3 })
	for node, spec := range policy.Compile(objects.Input()).Plans {
		if err := c.Create(ctx, &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := seen.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	for _, node := range nodes {
		plan := &v1alpha1.MPTCPNodePlan{}
		for plan.Status.EndpointsProgrammed != 3 {
			if err := c.Get(ctx, client.ObjectKey{Name: node}, plan); err != nil {
				t.Fatalf("waiting for the answer of %s: %v", node, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if plan.Status.ObservedGeneration != plan.Generation || plan.Status.Endpoints[0].UID != plan.Spec.Endpoints[0].UID {
			t.Errorf("the plan of %s is answered with %+v", node, plan.Status)
		}
	}
}
