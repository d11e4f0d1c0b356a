// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/plugin"
)

const previewed = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPath
metadata: {name: green}
spec: {interfaces: [ens2]}
---
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: web, namespace: default}
spec:
  priority: 7
  podSelector: {matchLabels: {app: web}}
  paths: {allowed: [blue, green, grren]}
---
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: spread, namespace: default}
spec: {podSelector: {}}
`

const refused = `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPath
metadata: {name: nothing}
spec: {}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
`

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "manifests.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestAPreviewSaysWhatManifestsWouldChangeAndChangesNothing(t *testing.T) {
	s := newScene(t)
	s.create(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, nil)
	s.addPath("blue")
	s.addPod("web", "node1")
	s.addPod("db", "node1")
	s.addPolicy("spread", nil)
	out, err := s.run("preview", "-f", write(t, previewed))
	require.NoError(t, err)
	s.golden("preview", out)
	var paths v1alpha1.MPTCPPathList
	require.NoError(t, s.client.List(t.Context(), &paths))
	require.Len(t, paths.Items, 1, "nothing was created")

	out, err = s.run("preview", "-f", write(t, refused))
	require.ErrorIs(t, err, plugin.ErrNotFine)
	require.Contains(t, out, "MPTCPPath nothing: Invalid")
	require.Contains(t, out, "name the NICs of the path")
	require.Contains(t, out, "ConfigMap other: NotBraids")
	require.Contains(t, out, "treated otherwise then: 0 of 2")
	_, err = s.run("preview")
	require.ErrorContains(t, err, "--filename")
}

func TestATenantPreviewsTheOwnNamespace(t *testing.T) {
	s := newScene(t)
	s.addPath("blue")
	tenant := s.addTenant()
	out, err := tenant.run("preview", "-f", write(t, `
apiVersion: braid.dev/v1alpha1
kind: MPTCPPolicy
metadata: {name: own}
spec: {podSelector: {}}
`))
	require.NoError(t, err, out)
	require.Contains(t, out, "own: pods that it decides for: 0")
	require.Contains(t, out, "pods of namespaces other than")
}
