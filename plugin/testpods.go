// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// testContainer is the container of a test's pods, and what their label ends with, by
	// which commands find it.
	testContainer = "test"
	// agentProgram is in the agents' image.
	agentProgram = "/braid-agent"
	testPort     = 5201
)

// testPod is of the agent's image on its node, which is there already, with no right at all.
func (t *tester) testPod(name, node string) *corev1.Pod {
	agent := t.agents[node].Spec.Containers[0]
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: name, Labels: map[string]string{"app.kubernetes.io/name": "braid-" + testContainer}},
		Spec: corev1.PodSpec{
			NodeName: node, RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: new(false),
			ActiveDeadlineSeconds: new(int64(lifetime / time.Second)), TerminationGracePeriodSeconds: new(int64(0)),
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: testContainer, Image: agent.Image, ImagePullPolicy: agent.ImagePullPolicy,
				Command: []string{agentProgram, "transfer", fmt.Sprintf("--listen=:%d", testPort)},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
					Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
				},
				SecurityContext: &corev1.SecurityContext{
					RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
}

// startPods makes both and waits until they run.
func (t *tester) startPods(ctx context.Context, between pair) (client, server *corev1.Pod, err error) {
	client, server = t.testPod("client", between.from), t.testPod("server", between.to)
	for _, pod := range []*corev1.Pod{client, server} {
		if err := t.create(ctx, pod); err != nil {
			return nil, nil, fmt.Errorf("making a pod on %s: %w", pod.Spec.NodeName, err)
		}
	}
	for _, pod := range []*corev1.Pod{client, server} {
		if err := t.until(ctx, t.options.wait, func() error { return t.runs(ctx, pod) }); err != nil {
			return nil, nil, fmt.Errorf("the pod on %s does not run: %w", pod.Spec.NodeName, err)
		}
	}
	return client, server, nil
}

// create makes a pod once its namespace has a service account, which a busy controller
// manager makes later than the namespace.
func (t *tester) create(ctx context.Context, pod *corev1.Pod) error {
	var err error
	_ = t.until(ctx, t.options.wait, func() error {
		err = t.Create(ctx, pod)
		if lacksServiceAccount(err) {
			return err
		}
		return nil
	})
	return err
}

// lacksServiceAccount is true for how the API server refuses a pod before that.
func lacksServiceAccount(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "error looking up service account")
}

// runs is nil once a pod does.
func (t *tester) runs(ctx context.Context, pod *corev1.Pod) error {
	if err := t.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	if pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" {
		return nil
	}
	for i := range pod.Status.ContainerStatuses {
		state := &pod.Status.ContainerStatuses[i].State
		switch {
		case state.Waiting != nil && state.Waiting.Message != "":
			return fmt.Errorf("%s: %s", state.Waiting.Reason, state.Waiting.Message)
		case state.Terminated != nil:
			return fmt.Errorf("%s: %s", state.Terminated.Reason, state.Terminated.Message)
		}
	}
	if pod.Status.Message != "" {
		return errors.New(pod.Status.Message)
	}
	return fmt.Errorf("it is %s", pod.Status.Phase)
}

// stopPods makes room for the next pair.
func (t *tester) stopPods(ctx context.Context) error {
	err := t.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(t.namespace))
	if err != nil {
		return fmt.Errorf("removing the test's pods: %w", err)
	}
	return t.until(ctx, t.options.wait, func() error {
		var left corev1.PodList
		if err := t.List(ctx, &left, client.InNamespace(t.namespace)); err != nil {
			return err
		}
		if len(left.Items) > 0 {
			return fmt.Errorf("%s is still there", left.Items[0].Name)
		}
		return nil
	})
}
