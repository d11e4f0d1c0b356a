// SPDX-License-Identifier: Apache-2.0

package plugin_test

import (
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

func (s *scene) addDeployment(name string) {
	s.t.Helper()
	labels := map[string]string{"app": name}
	s.create(&appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
		}},
	}, nil)
}

func TestThePodsOfADeploymentAreExplainedOnceIfTheyAreTreatedAlike(t *testing.T) {
	s := newScene(t)
	s.addPath("blue")
	s.addNode("node1", v1alpha1.NodePath{Name: "blue", Interface: "ens1", State: v1alpha1.LinkUp})
	s.addPolicy("spread", ready(v1alpha1.ConditionAccepted))
	s.addDeployment("web")
	s.addDeployment("idle")
	s.addPod("other", "node1")
	for _, name := range []string{"web-a", "web-b", "web-c"} {
		pod := s.addPod(name, "node1")
		pod.Labels["app"] = "web"
		if name == "web-c" {
			pod.Annotations = map[string]string{"braid.dev/preferred-paths": "blue"}
		}
		require.NoError(t, s.client.Update(t.Context(), pod))
	}
	out, err := s.run("explain", "deploy/web")
	require.NoError(t, err)
	require.Contains(t, out, "Pod default/web-a on node node1\n")
	require.Contains(t, out, "The same holds for 1 more: web-b\n")
	require.Contains(t, out, "Pod default/web-c on node node1\n", "it has an annotation of its own")
	require.NotContains(t, out, "other")
	out, err = s.run("explain", "deployments/web", "--output", "json")
	require.NoError(t, err)
	require.Equal(t, 3, strings.Count(out, `"decision"`), out)
	one, err := s.run("explain", "web-a")
	require.NoError(t, err)
	typed, err := s.run("explain", "pod/web-a")
	require.NoError(t, err)
	require.Equal(t, one, typed)

	for argument, says := range map[string]string{
		"deploy/idle":  "Deployment default/idle has no pod",
		"sts/web":      `statefulsets.apps "web" not found`,
		"configmap/ca": "must be a pod, or one of",
	} {
		_, err := s.run("explain", argument)
		require.ErrorContains(t, err, says, argument)
	}
}

func TestATraceToAServiceGoesToAReadyPodBehindIt(t *testing.T) {
	n := &nodes{agent: func(_ string, command []string, _ io.Reader, out io.Writer) error {
		_, err := fmt.Fprintln(out, command[3])
		return err
	}}
	s := newNodeScene(t, n)
	s.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "braid-system"}}, nil)
	s.addKubelet("node1", "192.0.2.1")
	s.addSystemPod("agent", "agent-node1", "node1", "192.0.2.1")
	s.addPod("web", "node1")
	s.addPod("db-0", "node1")
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db"}}
	service.Spec.Ports = []corev1.ServicePort{{Name: "postgres", Port: 5432}}
	s.create(service, nil)
	s.create(&discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: "db-1", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("postgres"), Port: new(int32(15432))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			{Addresses: []string{"10.0.0.2"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "db-0"}},
		},
	}, nil)
	for to, traced := range map[string]string{
		"db:5432": "10.0.0.2:15432", "db:postgres": "10.0.0.2:15432", "service/default/db:5432": "10.0.0.2:15432",
		"pod/db-0:80": "10.0.0.9:80", "db-0:80": "10.0.0.9:80", "10.0.0.7:1": "10.0.0.7:1",
	} {
		out, err := s.run("trace", "--pod", "default/web", "--to", to)
		require.NoError(t, err, to)
		require.Equal(t, "--to="+traced+"\n", out, to)
	}
	_, err := s.run("trace", "--pod", "web", "--to", "db:5432")
	require.NoError(t, err)
	require.Contains(t, s.warnings.String(), "Service default/db:5432 leads to 10.0.0.2:15432, pod db-0")
	for to, says := range map[string]string{
		"db:80": "has no port 80", "nosuch:80": `pods "nosuch" not found`, "svc/nosuch:80": `services "nosuch" not found`, "db-0:http": "must be a number", "db": "ADDRESS:PORT",
	} {
		_, err := s.run("trace", "--pod", "web", "--to", to)
		require.ErrorContains(t, err, says, to)
	}
}
