// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/apiserver"
)

func TestASharedServerIsForEachTestAsItBegan(t *testing.T) {
	var shared apiserver.Shared
	t.Cleanup(func() { require.NoError(t, shared.Stop()) })
	first := shared.Use(t)
	admin := newClient(t, first.Config())
	made := []client.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}},
		&v1alpha1.MPTCPPath{ObjectMeta: metav1.ObjectMeta{Name: "blue"}, Spec: v1alpha1.MPTCPPathSpec{Interfaces: []v1alpha1.InterfacePattern{"eth1"}}},
	}
	for range 2 {
		for _, object := range made {
			object.SetResourceVersion("")
			require.NoError(t, admin.Create(t.Context(), object))
		}
		changed := &corev1.Namespace{}
		require.NoError(t, admin.Get(t.Context(), client.ObjectKey{Name: "default"}, changed))
		require.NotContains(t, changed.Labels, "changed")
		changed.Labels["changed"] = "true"
		require.NoError(t, admin.Update(t.Context(), changed))

		require.Same(t, first, shared.Use(t))
		for _, object := range made {
			err := admin.Get(t.Context(), client.ObjectKeyFromObject(object), object)
			require.True(t, apierrors.IsNotFound(err), "%T: %v", object, err)
		}
		var paths v1alpha1.MPTCPPathList
		require.NoError(t, admin.List(t.Context(), &paths))
		require.Empty(t, paths.Items)
	}
}
