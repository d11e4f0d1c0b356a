// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/internal/lab/apiserver"
)

// A busy controller manager makes a namespace's service account seconds later.
func TestAPodOfTheTestWaitsForItsServiceAccount(t *testing.T) {
	server, err := apiserver.Start(t.Context(), apiserver.Options{Advertise: "192.0.2.1"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	c, err := client.New(server.Config(), client.Options{})
	require.NoError(t, err)
	pod := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "client"},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "test", Image: "none"}}},
		}
	}

	impatient := &tester{Client: c, options: testOptions{wait: 0}}
	require.ErrorContains(t, impatient.create(t.Context(), pod()), `serviceaccount "default" not found`)

	made := make(chan error, 1)
	time.AfterFunc(time.Second, func() {
		made <- c.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}})
	})
	patient := &tester{Client: c, options: testOptions{wait: time.Minute}}
	require.NoError(t, patient.create(t.Context(), pod()))
	require.NoError(t, <-made)
}
