// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
)

func TestAPolicyThatOnlySelectsGetsTheDefaults(t *testing.T) {
	namespaced := &v1alpha1.MPTCPPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "defaults", Namespace: metav1.NamespaceDefault},
	}
	everywhere := &v1alpha1.ClusterMPTCPPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "defaults"},
		Spec: v1alpha1.ClusterMPTCPPolicySpec{
			NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
		},
	}
	for name, test := range map[string]struct {
		object client.Object
		rules  *v1alpha1.PolicyRules
	}{
		"in its namespace":  {namespaced, &namespaced.Spec.PolicyRules},
		"in all namespaces": {everywhere, &everywhere.Spec.PolicyRules},
	} {
		t.Run(name, func(t *testing.T) {
			if err := newClient(t).Create(t.Context(), test.object, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			if test.rules.Paths.Spread != v1alpha1.SpreadPerSubflow {
				t.Errorf("spread: got %q, want %q", test.rules.Paths.Spread, v1alpha1.SpreadPerSubflow)
			}
			if test.rules.Subflows.Manager != v1alpha1.SubflowManagerKernel {
				t.Errorf("manager: got %q, want %q", test.rules.Subflows.Manager, v1alpha1.SubflowManagerKernel)
			}
			if test.rules.Priority != 0 || test.rules.Sockets.Upgrade || test.rules.Subflows.Count != nil {
				t.Errorf("got %+v, want priority 0, no upgrade and no count", test.rules)
			}
		})
	}
}

func TestStatusIsWrittenOnlyThroughItsSubresource(t *testing.T) {
	c := newClient(t)
	path := &v1alpha1.MPTCPPath{
		ObjectMeta: metav1.ObjectMeta{Name: "status"},
		Spec:       v1alpha1.MPTCPPathSpec{Interfaces: []v1alpha1.InterfacePattern{"eth1"}},
		Status:     v1alpha1.MPTCPPathStatus{Nodes: 7},
	}
	if err := c.Create(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Delete(t.Context(), path); err != nil {
			t.Error(err)
		}
	}()
	if path.Status.Nodes != 0 {
		t.Errorf("creating the path wrote its status: %+v", path.Status)
	}
	path.Status.Nodes = 3
	path.Spec.Interfaces = []v1alpha1.InterfacePattern{"eth2"}
	if err := c.Status().Update(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	if path.Status.Nodes != 3 || path.Spec.Interfaces[0] != "eth1" {
		t.Errorf("got %+v, want the new status and the old spec", path)
	}
}

func TestKubectlShowsAKindUnderItsShortName(t *testing.T) {
	kubectl, err := apiserver.DefaultBinDir()
	if err != nil {
		t.Fatal(err)
	}
	kubectl = filepath.Join(kubectl, "kubectl")
	object := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	for shortName, test := range map[string]struct {
		object  client.Object
		columns []string
	}{
		"mpath": {
			&v1alpha1.MPTCPPath{ObjectMeta: object("shown"), Spec: v1alpha1.MPTCPPathSpec{Interfaces: []v1alpha1.InterfacePattern{"eth1"}}},
			[]string{"NAME", "INTERFACES", "NODES", "UP", "READY", "AGE"},
		},
		"mpol": {
			&v1alpha1.MPTCPPolicy{ObjectMeta: metav1.ObjectMeta{Name: "shown", Namespace: metav1.NamespaceDefault}},
			[]string{"NAME", "PRIORITY", "MANAGER", "PODS", "PROGRAMMED", "STATUS", "SPREADING", "AGE"},
		},
		"cmpol": {
			&v1alpha1.ClusterMPTCPPolicy{ObjectMeta: object("shown"), Spec: v1alpha1.ClusterMPTCPPolicySpec{
				NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
			}},
			[]string{"NAME", "PRIORITY", "MANAGER", "PODS", "PROGRAMMED", "STATUS", "SPREADING", "AGE"},
		},
		"mguard": {
			&v1alpha1.MPTCPGuardrail{ObjectMeta: object("shown"), Spec: v1alpha1.MPTCPGuardrailSpec{
				NamespaceSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
			}},
			[]string{"NAME", "PATHS", "MAX-POD-RATE", "PODS", "PROGRAMMED", "STATUS", "AGE"},
		},
		"mnode": {
			&v1alpha1.MPTCPNode{ObjectMeta: object("shown")},
			[]string{"NAME", "KERNEL", "PATHS", "UP", "READY", "CONFIRMED", "AGE"},
		},
		"mplan": {
			&v1alpha1.MPTCPNodePlan{ObjectMeta: object("shown")},
			[]string{"NAME", "ENDPOINTS", "PROGRAMMED", "STATUS", "AGE"},
		},
	} {
		t.Run(shortName, func(t *testing.T) {
			c := newClient(t)
			if err := c.Create(t.Context(), test.object); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Delete(t.Context(), test.object); err != nil {
					t.Error(err)
				}
			}()
			cmd := exec.Command(kubectl, "--kubeconfig", server.KubeconfigPath(), "--cache-dir", t.TempDir(), "get", shortName)
			output, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			header, row, _ := strings.Cut(string(output), "\n")
			if got := strings.Fields(header); strings.Join(got, " ") != strings.Join(test.columns, " ") {
				t.Errorf("columns: got %v, want %v", got, test.columns)
			}
			if !strings.HasPrefix(row, "shown") {
				t.Errorf("the object is not shown: %q", row)
			}
		})
	}
}
