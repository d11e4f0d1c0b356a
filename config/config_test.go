// SPDX-License-Identifier: Apache-2.0

// Package config_test applies the manifests to a real API server and tries what
// they allow and what they refuse.
package config_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
	"braid.dev/braid/internal/testutil"
)

const systemNamespace = "braid-system"

// server has everything in this directory, applied as a user would apply it.
var server *apiserver.Server

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) (code int) {
	var err error
	if server, err = apiserver.Start(context.Background(), apiserver.Options{}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	for _, arguments := range [][]string{
		{"apply", "--server-side", "-k", "."},
		{"wait", "--for=condition=Established", "--timeout=30s", "crd", "--all"},
	} {
		if err := kubectl(arguments...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return m.Run()
}

func kubectl(arguments ...string) error {
	dir, err := apiserver.DefaultBinDir()
	if err != nil {
		return err
	}
	global := []string{"--kubeconfig", server.KubeconfigPath(), "--cache-dir", filepath.Join(server.Dir(), "kubectl")}
	output, err := exec.Command(filepath.Join(dir, "kubectl"), append(global, arguments...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, output)
	}
	return nil
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func create(t *testing.T, c client.Client, objects ...client.Object) {
	t.Helper()
	for _, object := range objects {
		if err := c.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := c.Delete(context.Background(), object); err != nil {
				t.Error(err)
			}
		})
	}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func inSystem(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: systemNamespace, Name: name}
}

func TestTheSamplesApply(t *testing.T) {
	if err := kubectl("apply", "--server-side", "-k", "samples"); err != nil {
		t.Fatal(err)
	}
	if err := kubectl("delete", "-k", "samples"); err != nil {
		t.Error(err)
	}
}

func TestAnAgentWritesTheObjectsOfItsOwnNodeAlone(t *testing.T) {
	admin := newClient(t, server.Config())
	ours, theirs := &v1alpha1.MPTCPNodePlan{ObjectMeta: named("ours")}, &v1alpha1.MPTCPNodePlan{ObjectMeta: named("theirs")}
	theirNode := &v1alpha1.MPTCPNode{ObjectMeta: named("theirs")}
	create(t, admin, &corev1.Node{ObjectMeta: named("ours")}, ours, theirs, theirNode)
	agent := agentClient(t, "ours")
	waitForAdmission(t, agent)

	lease := func(name string) client.Object { return &coordinationv1.Lease{ObjectMeta: inSystem(name)} }
	for name, test := range map[string]struct {
		write   func() error
		refused string
	}{
		"its own MPTCPNode": {write: func() error {
			return agent.Create(t.Context(), &v1alpha1.MPTCPNode{ObjectMeta: named("ours")})
		}},
		"the status of its own plan": {write: func() error { return patchStatus(t, agent, ours) }},
		"its own lease":              {write: func() error { return agent.Create(t.Context(), lease("braid-agent-ours")) }},
		"the MPTCPNode of another node": {refused: "may write ours, not other", write: func() error {
			return agent.Create(t.Context(), &v1alpha1.MPTCPNode{ObjectMeta: named("other")})
		}},
		"the status of another's MPTCPNode": {refused: "may write ours, not theirs", write: func() error {
			return agent.Status().Patch(t.Context(), theirNode, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"kernelRelease":"7"}}`)))
		}},
		"the status of another's plan": {refused: "may write ours, not theirs", write: func() error { return patchStatus(t, agent, theirs) }},
		"the lease of another agent": {refused: "may write braid-agent-ours, not braid-agent-theirs", write: func() error {
			return agent.Create(t.Context(), lease("braid-agent-theirs"))
		}},
		"the lease of the controller": {refused: "may write braid-agent-ours, not braid-controller", write: func() error {
			return agent.Create(t.Context(), lease("braid-controller"))
		}},
		"a path": {refused: "cannot create resource", write: func() error {
			return agent.Create(t.Context(), &v1alpha1.MPTCPPath{ObjectMeta: named("blue")})
		}},
	} {
		t.Run(name, func(t *testing.T) { expect(t, test.write(), test.refused) })
	}
}

func TestAnAgentWhoseTokenNamesNoNodeWritesNothing(t *testing.T) {
	agent := agentClient(t, "")
	waitForAdmission(t, agent)
	err := agent.Create(t.Context(), &v1alpha1.MPTCPNode{ObjectMeta: named("ours")})
	expect(t, err, "the agent's token does not name its node")
}

func TestAnAgentReadsTheConfigMapsOfBlocksAndNoOthers(t *testing.T) {
	admin := newClient(t, server.Config())
	create(t, admin, &corev1.Node{ObjectMeta: named("ours")},
		&corev1.ConfigMap{ObjectMeta: inSystem("blocks"), BinaryData: map[string][]byte{"mark.o": {1}}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "theirs"}})
	agent := agentClient(t, "ours")
	read := func(namespace, name string) error {
		return agent.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &corev1.ConfigMap{})
	}
	testutil.Eventually(t, 30*time.Second, "the role has effect", func() bool { return read(systemNamespace, "blocks") == nil })
	expect(t, read("default", "theirs"), "cannot get resource")
	expect(t, agent.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(systemNamespace)), "cannot list resource")
	expect(t, agent.Update(t.Context(), &corev1.ConfigMap{ObjectMeta: inSystem("blocks")}), "cannot update resource")
}

func TestATenantWritesPoliciesOfItsNamespaceAlone(t *testing.T) {
	admin := newClient(t, server.Config())
	for _, role := range []string{"braid-edit", "braid-view"} {
		create(t, admin, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "alice"}},
		})
	}
	alice := client.NewDryRunClient(newClient(t, server.UserConfig("alice")))
	policy := func(namespace string) client.Object {
		return &v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "tenant"}}
	}
	testutil.Eventually(t, 30*time.Second, "the roles have effect", func() bool {
		return alice.Create(t.Context(), policy("default")) == nil
	})
	expect(t, alice.Create(t.Context(), policy("kube-public")), "cannot create resource")
	expect(t, alice.Create(t.Context(), &v1alpha1.ClusterMPTCPPolicy{ObjectMeta: named("all"), Spec: v1alpha1.ClusterMPTCPPolicySpec{
		NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "b"}},
	}}), "cannot create resource")
}

// expect checks that a request was allowed, or refused with these words.
func expect(t *testing.T, err error, refused string) {
	t.Helper()
	switch {
	case refused == "" && err != nil:
		t.Errorf("got %v, want it allowed", err)
	case refused != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), refused)):
		t.Errorf("got %v, want a refusal that says %q", err, refused)
	}
}

// agentClient returns a client that tries what the agent of a node may do, and
// changes nothing.
func agentClient(t *testing.T, node string) client.Client {
	t.Helper()
	config, err := server.ServiceAccountConfig(t.Context(), systemNamespace, "braid-agent", node)
	if err != nil {
		t.Fatal(err)
	}
	return client.NewDryRunClient(newClient(t, config))
}

// waitForAdmission waits until the server knows the admission policy, which it
// learns shortly after it was applied.
func waitForAdmission(t *testing.T, agent client.Client) {
	t.Helper()
	probe := &v1alpha1.MPTCPNode{ObjectMeta: named("probe")}
	testutil.Eventually(t, 30*time.Second, "the admission policy has effect", func() bool {
		err := agent.Create(t.Context(), probe.DeepCopy())
		return err != nil && strings.Contains(err.Error(), "braid-agent-own-node")
	})
}

func patchStatus(t *testing.T, c client.Client, plan *v1alpha1.MPTCPNodePlan) error {
	t.Helper()
	return c.Status().Patch(t.Context(), plan.DeepCopy(),
		client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":1}}`)))
}
