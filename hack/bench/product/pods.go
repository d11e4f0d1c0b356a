// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/hack/bench/rig"
	"braid.dev/braid/hack/lab"
)

// podOn is a pod of the namespace default on a node, by its number; 0 is any node.
func podOn(name string, node int, main corev1.Container) *corev1.Pod {
	grace := int64(0)
	main.ImagePullPolicy = corev1.PullNever
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{main}},
	}
	if node > 0 {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: fmt.Sprintf("node%d", node)}
	}
	return pod
}

// quietPod does nothing, and takes next to no memory.
func quietPod(name string, node int) *corev1.Pod {
	return podOn(name, node, corev1.Container{Name: "pause", Image: lab.PauseImage})
}

func trafficPod(name string, node int, arguments ...string) *corev1.Pod {
	return podOn(name, node, corev1.Container{Name: "traffic", Image: lab.TrafficImage, Args: arguments})
}

func workloadPod(name string, node int, command ...string) *corev1.Pod {
	return podOn(name, node, corev1.Container{Name: "main", Image: lab.WorkloadImage, Command: command})
}

func createPods(ctx context.Context, c *rig.Cluster, pods ...*corev1.Pod) error {
	for _, pod := range pods {
		if err := c.Client.Create(ctx, pod); err != nil {
			return fmt.Errorf("creating pod %s: %w", pod.Name, err)
		}
	}
	return nil
}
