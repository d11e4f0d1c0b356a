// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// owners are kinds that pods belong to by a selector, by the words for them.
var owners = map[string]schema.GroupVersionKind{
	"deployment": {Group: "apps", Version: "v1", Kind: "Deployment"}, "deploy": {Group: "apps", Version: "v1", Kind: "Deployment"},
	"statefulset": {Group: "apps", Version: "v1", Kind: "StatefulSet"}, "sts": {Group: "apps", Version: "v1", Kind: "StatefulSet"},
	"daemonset": {Group: "apps", Version: "v1", Kind: "DaemonSet"}, "ds": {Group: "apps", Version: "v1", Kind: "DaemonSet"},
	"replicaset": {Group: "apps", Version: "v1", Kind: "ReplicaSet"}, "rs": {Group: "apps", Version: "v1", Kind: "ReplicaSet"},
	"job": {Group: "batch", Version: "v1", Kind: "Job"},
}

// podsNamed are the pod of a name, or those of an owner as KIND/NAME, by their names.
func podsNamed(ctx context.Context, c client.Client, namespace, name string) ([]corev1.Pod, error) {
	word, rest, isTyped := strings.Cut(name, "/")
	if isOwner(name) {
		return podsOf(ctx, c, namespace, strings.ToLower(word), rest)
	}
	if isTyped {
		name = rest
	}
	var pod corev1.Pod
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	return []corev1.Pod{pod}, nil
}

// isOwner is true of KIND/NAME, unless the kind is that of pods.
func isOwner(name string) bool {
	word, _, isTyped := strings.Cut(name, "/")
	return isTyped && word != "pod" && word != "pods" && word != "po"
}

func podsOf(ctx context.Context, c client.Client, namespace, word, name string) ([]corev1.Pod, error) {
	kind, known := owners[word]
	if !known {
		if kind, known = owners[strings.TrimSuffix(word, "s")]; !known {
			return nil, fmt.Errorf("%s/%s: must be a pod, or one of %s", word, name, strings.Join(slices.Sorted(maps.Keys(owners)), ", "))
		}
	}
	var owner unstructured.Unstructured
	owner.SetGroupVersionKind(kind)
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &owner); err != nil {
		return nil, fmt.Errorf("reading %s %s/%s: %w", kind.Kind, namespace, name, err)
	}
	selector, err := selectorOf(&owner)
	if err != nil {
		return nil, err
	}
	var pods corev1.PodList
	if err := c.List(ctx, &pods, client.InNamespace(namespace), selector); err != nil {
		return nil, fmt.Errorf("reading the pods of %s %s/%s: %w", kind.Kind, namespace, name, err)
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("%s %s/%s has no pod", kind.Kind, namespace, name)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods.Items, nil
}

func selectorOf(owner *unstructured.Unstructured) (client.MatchingLabelsSelector, error) {
	var labels metav1.LabelSelector
	fields, _, err := unstructured.NestedMap(owner.Object, "spec", "selector")
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &labels)
	}
	if err != nil {
		return client.MatchingLabelsSelector{}, fmt.Errorf("reading the selector of %s %s: %w", owner.GetKind(), owner.GetName(), err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&labels)
	return client.MatchingLabelsSelector{Selector: selector}, wrap(err, "reading the selector of "+owner.GetName())
}

// alike groups pods that are treated alike: their explanations differ in names alone.
func alike(all []*Explanation) (groups [][]*Explanation) {
	at := map[string]int{}
	for _, one := range all {
		pod := one.Decision.Pod
		key := strings.Replace(one.text(), fmt.Sprintf("Pod %s on node %s\n", pod, pod.Node), "", 1)
		place, known := at[key]
		if !known {
			place = len(groups)
			at[key] = place
			groups = append(groups, nil)
		}
		groups[place] = append(groups[place], one)
	}
	return groups
}

// groupsText shows one of each group in full.
func groupsText(groups [][]*Explanation) string {
	var texts []string
	for _, group := range groups {
		text := group[0].text()
		if others := len(group) - 1; others > 0 {
			var names []string
			for _, one := range group[1:] {
				names = append(names, one.Decision.Pod.Name)
			}
			text += fmt.Sprintf("The same holds for %d more: %s\n", others, enumerate(names))
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "\n")
}
