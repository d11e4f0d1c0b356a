// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"braid.dev/braid/api/v1alpha1"
)

// v1alpha1Scheme knows Kubernetes' own kinds and ours.
func v1alpha1Scheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}
