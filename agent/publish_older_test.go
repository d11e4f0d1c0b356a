// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
)

// olderPlans is the directory of a definition of plans that has no counts.
func olderPlans(t *testing.T) string {
	t.Helper()
	return olderDefinition(t, "braid.dev_mptcpnodeplans.yaml", func(status map[string]apiextensionsv1.JSONSchemaProps) { delete(status, "summary") })
}

// olderNodes is the directory of a definition of nodes that knows of no encapsulation.
func olderNodes(t *testing.T) string {
	t.Helper()
	return olderDefinition(t, "braid.dev_mptcpnodes.yaml", func(status map[string]apiextensionsv1.JSONSchemaProps) {
		delete(status, "encapsulationKey")
		delete(status["paths"].Items.Schema.Properties, "encapsulated")
	})
}

func olderDefinition(t *testing.T, name string, takeAway func(status map[string]apiextensionsv1.JSONSchemaProps)) string {
	t.Helper()
	from, err := apiserver.CRDDir()
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(from, name))
	require.NoError(t, err)
	var definition apiextensionsv1.CustomResourceDefinition
	require.NoError(t, yaml.Unmarshal(text, &definition))
	takeAway(definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties)
	text, err = yaml.Marshal(definition)
	require.NoError(t, err)
	directory := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(directory, "older.yaml"), text, 0o600))
	return directory
}

// clientOfServerWith is one of an API server that has the definitions of a directory alone.
func clientOfServerWith(t *testing.T, definitions string) client.Client {
	t.Helper()
	server, err := apiserver.Start(t.Context(), apiserver.Options{CRDDirs: []string{definitions}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	return clientOf(t, server)
}

func clientOf(t *testing.T, server *apiserver.Server) client.Client {
	t.Helper()
	types := runtime.NewScheme()
	require.NoError(t, v1alpha1.AddToScheme(types))
	c, err := client.New(server.Config(), client.Options{Scheme: types})
	require.NoError(t, err)
	return c
}

// The counts of a newer agent would tell of what it saw for as long as nobody changes the plan.
func TestAnEarlierAgentsStatusTakesTheCountsAway(t *testing.T) {
	c := clientOf(t, apiserver.ForTest(t))
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "counted"}}
	require.NoError(t, c.Create(t.Context(), plan))
	a := &Agent{log: logr.Discard(), client: c}
	require.NoError(t, a.publishPlan(t.Context(), outcome{snapshot: &snapshot{plan: plan}}))
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(plan), plan))
	require.NotNil(t, plan.Status.Summary)
	_, err := a.applyPlanStatus(t.Context(), plan.Name, v1alpha1.MPTCPNodePlanStatus{ObservedGeneration: plan.Generation})
	require.NoError(t, err)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(plan), plan))
	require.Nil(t, plan.Status.Summary)
}

// In a rollback agents meet the definitions of before: what these lack must not keep the rest
// of a status from being told.
func TestAPlansStatusIsToldWhereTheDefinitionHasNoCounts(t *testing.T) {
	c := clientOfServerWith(t, olderPlans(t))
	plan := &v1alpha1.MPTCPNodePlan{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	require.NoError(t, c.Create(t.Context(), plan))

	a := &Agent{log: logr.Discard(), client: c}
	for range 2 {
		require.NoError(t, a.publishPlan(t.Context(), outcome{snapshot: &snapshot{plan: plan}}))
		require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(plan), plan))
		require.Equal(t, plan.Generation, plan.Status.ObservedGeneration)
		require.Nil(t, plan.Status.Summary)
	}
}

func TestANodesStatusIsToldWhereTheDefinitionKnowsNoEncapsulation(t *testing.T) {
	c := clientOfServerWith(t, olderNodes(t))
	node := &v1alpha1.MPTCPNode{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	require.NoError(t, c.Create(t.Context(), node))
	told := &v1alpha1.MPTCPNode{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "MPTCPNode"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	told.Status.EncapsulationKey, told.Status.AgentVersion = "00000000000000ff", "new"
	told.Status.Paths = []v1alpha1.NodePath{{Name: "blue", State: v1alpha1.LinkUp, Encapsulated: 2}}
	a := &Agent{log: logr.Discard(), client: c}
	_, err := a.applyNodeStatus(t.Context(), told)
	require.NoError(t, err)
	require.NoError(t, c.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	require.Equal(t, "new", node.Status.AgentVersion)
	require.Len(t, node.Status.Paths, 1)
}
