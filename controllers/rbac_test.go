// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// roleFile is generated from the markers in this package; policyFile narrows it.
var (
	roleFile   = filepath.Join("..", "config", "rbac", "controller_role.yaml")
	policyFile = filepath.Join("..", "config", "admission", "controller.yaml")
)

const controllerUser = "system:serviceaccount:" + DefaultNamespace + ":braid-controller"

func readObjects(t *testing.T, file string) []runtime.Object {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(newScheme()).UniversalDeserializer()
	documents := yaml.NewDocumentDecoder(io.NopCloser(bytes.NewReader(content)))
	var objects []runtime.Object
	for buffer := make([]byte, 1<<20); ; {
		n, err := documents.Read(buffer)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		object, _, err := decoder.Decode(buffer[:n], nil, nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, object)
	}
}

// grant creates the generated roles, binds the controller's user to them, and applies
// the admission policy.
func (k *cluster) grant(objects []runtime.Object) {
	k.t.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: controllerUser}}
	for _, object := range objects {
		switch role := object.(type) {
		case *rbacv1.ClusterRole:
			k.create(role)
			k.createForTest(&rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			}, role)
		case *rbacv1.Role:
			k.create(role)
			k.createForTest(&rbacv1.RoleBinding{
				ObjectMeta: metav1.ObjectMeta{Namespace: role.Namespace, Name: role.Name}, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
			}, role)
		case *admissionv1.ValidatingAdmissionPolicy:
			k.create(role)
			k.t.Cleanup(func() { k.delete(role) })
		case *admissionv1.ValidatingAdmissionPolicyBinding:
			k.create(role)
			k.t.Cleanup(func() { k.delete(role) })
		default:
			k.t.Fatalf("unexpected %T", object)
		}
	}
}

func (k *cluster) createForTest(binding, role client.Object) {
	k.t.Helper()
	k.create(binding)
	k.t.Cleanup(func() {
		k.delete(binding)
		k.delete(role)
	})
}

// createSystem creates the namespaces that the roles are in.
func (k *cluster) createSystem() {
	k.t.Helper()
	for _, name := range []string{DefaultNamespace, DefaultNamespace + v1alpha1.AgentsNamespaceSuffix} {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := k.Create(context.Background(), ns); err != nil && !apierrors.IsAlreadyExists(err) {
			k.t.Fatal(err)
		}
	}
}

func TestGeneratedRoleAllowsWhatTheControllerDoes(t *testing.T) {
	k := newCluster(t)
	k.system = DefaultNamespace
	k.createSystem()
	k.grant(append(readObjects(t, roleFile), readObjects(t, policyFile)...))
	cfg, sent := watched(asController())

	k.node("node-a", nil)
	a := k.agent("node-a", "blue")
	path := k.path("blue")
	pod := k.pod("pod", "node-a", "10.0.1.2", nil)
	p := k.policy("all", func(p *v1alpha1.MPTCPPolicy) { p.Spec.Paths.Allowed = []v1alpha1.PathName{"blue", "purple"} })
	cluster := &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cluster"}}
	cluster.Spec.NamespaceSelector.MatchLabels = map[string]string{"none": "such"}
	k.create(cluster)
	stop := k.startController(cfg, k.elect)

	k.waitForPods("node-a", "pod") // creates plans
	a.report(v1alpha1.EndpointProgrammed, "")
	k.waitForCondition(p, v1alpha1.ConditionProgrammed, v1alpha1.ReasonPathNotFound) // writes every status
	k.waitForCondition(cluster, v1alpha1.ConditionProgrammed, v1alpha1.ReasonNoPodsSelected)
	k.waitForCondition(path, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	k.waitForCondition(node, v1alpha1.ConditionReady, v1alpha1.ReasonReady)
	k.waitForEvent(p, "Warning", v1alpha1.ReasonPathNotFound) // tells Events of both scopes
	k.waitForEvent(path, "Normal", v1alpha1.ReasonReady)
	change(k, pod, func(p *corev1.Pod) { p.Annotations = map[string]string{v1alpha1.AnnotationMaxRate: "fast"} })
	k.waitForEvent(pod, "Warning", v1alpha1.ReasonHintMalformed)
	k.delete(p)
	k.waitForPods("node-a") // updates plans
	k.delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}})
	k.waitUntilGone(&v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}) // deletes plans
	a.renew(time.Second)
	k.waitUntilGone(node) // deletes nodes
	stop()                // releases the leader's Lease

	sent.mu.Lock()
	defer sent.mu.Unlock()
	if len(sent.forbidden) > 0 {
		t.Errorf("the generated role forbids what the controller does: %v", sent.forbidden)
	}
}

func asController() *rest.Config {
	cfg := rest.CopyConfig(apiServer)
	cfg.Impersonate.UserName = controllerUser
	return cfg
}

func TestGeneratedRoleAllowsNothingElse(t *testing.T) {
	k := newCluster(t)
	k.createSystem()
	k.grant(append(readObjects(t, roleFile), readObjects(t, policyFile)...))
	restricted, err := client.New(asController(), client.Options{Scheme: newScheme()})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	k.node("node-a", nil)
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	k.create(plan)
	pod := k.pod("pod", "node-a", "10.0.1.2", nil)
	p := k.policy("policy", nil)
	k.eventually(func() error { return restricted.List(ctx, &corev1.PodList{}) }) // the role is in force
	k.eventually(func() error {                                                   // and the admission policy
		err := restricted.Delete(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}}, client.DryRunAll)
		if !apierrors.IsForbidden(err) {
			return fmt.Errorf("deleting a role: %w", err)
		}
		return nil
	})
	for _, tc := range []struct {
		name string
		do   func() error
	}{
		{"write the status of a plan", func() error { return restricted.Status().Update(ctx, plan) }},
		{"change a policy", func() error { return restricted.Update(ctx, p) }},
		{"delete a policy", func() error { return restricted.Delete(ctx, p) }},
		{"make a path", func() error {
			return restricted.Create(ctx, &v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "x"}})
		}},
		{"change a pod", func() error { return restricted.Update(ctx, pod) }},
		{"delete a pod", func() error { return restricted.Delete(ctx, pod) }},
		{"read secrets", func() error { return restricted.List(ctx, &corev1.SecretList{}) }},
		{"change a ConfigMap", func() error {
			return restricted.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: "programs"}})
		}},
		{"read ConfigMaps of other namespaces", func() error {
			return restricted.List(ctx, &corev1.ConfigMapList{}, client.InNamespace("kube-system"))
		}},
		{"change a node", func() error {
			return restricted.Update(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}})
		}},
		{"renew the Lease of an agent", func() error {
			return restricted.Update(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: v1alpha1.AgentLeasePrefix + "node-a"}})
		}},
		{"read Leases of other namespaces", func() error {
			return restricted.List(ctx, &coordinationv1.LeaseList{}, client.InNamespace("kube-system"))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.do(); !apierrors.IsForbidden(err) {
				t.Errorf("want it forbidden, got: %v", err)
			}
		})
	}
}
