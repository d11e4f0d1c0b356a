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

func newScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

func newClient(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: newScheme(t)})
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

func patchStatus(t *testing.T, c client.Client, plan *v1alpha1.MPTCPNodePlan) error {
	t.Helper()
	return c.Status().Patch(t.Context(), plan.DeepCopy(),
		client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":1}}`)))
}
