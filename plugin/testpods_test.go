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

func TestPairsOfTheTest(t *testing.T) {
	nodes := map[string]*corev1.Pod{"node1": nil, "node2": nil, "node3": nil}
	for _, c := range []struct {
		options testOptions
		want    []pair
	}{
		{testOptions{}, []pair{{"node1", "node2"}}},
		{testOptions{from: "node3"}, []pair{{"node3", "node1"}}},
		{testOptions{to: "node1"}, []pair{{"node2", "node1"}}},
		{testOptions{from: "node2", to: "node3"}, []pair{{"node2", "node3"}}},
		{testOptions{allPairs: true}, []pair{{"node1", "node2"}, {"node1", "node3"}, {"node2", "node3"}}},
	} {
		found, err := (&tester{surveyor: &surveyor{agents: nodes}, options: c.options}).pairs()
		require.NoError(t, err)
		require.Equal(t, c.want, found, "%+v", c.options)
	}
}
