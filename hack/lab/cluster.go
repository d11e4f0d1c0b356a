// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

func newClient(config *rest.Config) (client.Client, error) {
	types := runtime.NewScheme()
	if err := scheme.AddToScheme(types); err != nil {
		return nil, fmt.Errorf("registering Kubernetes types: %w", err)
	}
	if err := v1alpha1.AddToScheme(types); err != nil {
		return nil, fmt.Errorf("registering Braid types: %w", err)
	}
	c, err := client.New(config, client.Options{Scheme: types})
	if err != nil {
		return nil, fmt.Errorf("making a client of the API server: %w", err)
	}
	return c, nil
}

// register tells the API server of nodes and pods, as kubelets would.
func (l *Lab) register(ctx context.Context) error {
	for _, node := range l.Network.Nodes {
		if err := l.registerNode(ctx, node); err != nil {
			return err
		}
	}
	for _, pod := range l.options.Pods {
		if err := l.createNamespace(ctx, pod.Namespace); err != nil {
			return err
		}
		if err := l.RegisterPod(ctx, pod); err != nil {
			return err
		}
	}
	return nil
}

// create creates an object and then sets its status, which Create leaves out.
func (l *Lab) create(ctx context.Context, object client.Object, setStatus func()) error {
	what := fmt.Sprintf("%T %s", object, object.GetName())
	if err := l.Client.Create(ctx, object); err != nil {
		return fmt.Errorf("creating %s: %w", what, err)
	}
	if setStatus == nil {
		return nil
	}
	setStatus()
	if err := l.Client.Status().Update(ctx, object); err != nil {
		return fmt.Errorf("setting the status of %s: %w", what, err)
	}
	return nil
}

func (l *Lab) createNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := l.Client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating namespace %s: %w", name, err)
	}
	return nil
}

func (l *Lab) registerNode(ctx context.Context, node *network.Node) error {
	name := node.NodeName()
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux",
		}},
	}
	addresses := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	pods := node
	if l.options.StrayPods {
		pods = l.Network.Nodes[node.Number%len(l.Network.Nodes)]
	}
	for _, version := range l.Network.Versions() {
		object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, pods.PodCIDR(version))
		addresses = append(addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: node.Address(0, version)})
	}
	object.Spec.PodCIDR = object.Spec.PodCIDRs[0]
	return l.create(ctx, object, func() {
		object.Status.Addresses = addresses
		object.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "LabNode"}}
	})
}

// RegisterPod tells the API server of a pod whose network there is.
func (l *Lab) RegisterPod(ctx context.Context, pod Pod) error {
	inside := l.Network.Pod(pod.Name)
	object := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: pod.Labels},
		Spec: corev1.PodSpec{
			NodeName:   inside.Node.NodeName(),
			Containers: []corev1.Container{{Name: "traffic", Image: "traffic"}},
		},
	}
	return l.create(ctx, object, func() {
		object.Status = corev1.PodStatus{
			Phase:      corev1.PodRunning,
			HostIP:     inside.Node.Address(0, l.Network.Versions()[0]),
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		}
		for _, version := range l.Network.Versions() {
			object.Status.PodIPs = append(object.Status.PodIPs, corev1.PodIP{IP: inside.Address(version)})
		}
		object.Status.PodIP = object.Status.PodIPs[0].IP
	})
}

// AddPod adds a pod to a lab that is up, as a scheduler and a kubelet would. Its
// namespace is one of those that the lab began with; Serves is ignored.
func (l *Lab) AddPod(ctx context.Context, pod Pod) (*network.Pod, error) {
	inside, err := l.Network.Nodes[pod.Node-1].AddPod(pod.Name)
	if err != nil {
		return nil, err
	}
	if err := l.RegisterPod(ctx, pod); err != nil {
		return nil, errors.Join(err, l.RemovePod(context.WithoutCancel(ctx), pod.Namespace, inside))
	}
	return inside, nil
}

// RemovePod removes a pod. It is no error when its object is gone already.
func (l *Lab) RemovePod(ctx context.Context, namespace string, pod *network.Pod) error {
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod.PodName}}
	err := client.IgnoreNotFound(l.Client.Delete(ctx, object, client.GracePeriodSeconds(0)))
	return errors.Join(err, pod.Remove())
}

// SystemNamespace is where Braid's own objects are.
const SystemNamespace = "braid-system"

// The service accounts of the two components.
const (
	controllerAccount = "braid-controller"
	agentAccount      = "braid-agent"
)
