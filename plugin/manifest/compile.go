// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/policy"
)

// input is what the manifests give the compile.
type input struct {
	policy.Input
	policies map[string]*entry // by policy.PolicyString
	paths    map[string]*entry // by name
	pods     []template
}

// template is a pod, or what makes pods.
type template struct {
	*entry
	pod      *corev1.Pod
	metadata string // the field of the pod's metadata
}

// addOurs takes an object of Braid's.
func (i *input) addOurs(e *entry) error {
	if i.policies == nil {
		i.policies, i.paths = map[string]*entry{}, map[string]*entry{}
	}
	switch e.Object.GetKind() {
	case "MPTCPPath":
		i.paths[e.Object.GetName()] = e
		return take(e, &i.Paths)
	case policy.KindPolicy:
		i.policies[reference(e)] = e
		return take(e, &i.Policies)
	case policy.KindClusterPolicy:
		i.policies[reference(e)] = e
		return take(e, &i.ClusterPolicies)
	case policy.KindGuardrail:
		i.policies[reference(e)] = e
		return take(e, &i.Guardrails)
	}
	return nil
}

func reference(e *entry) string {
	return policy.PolicyString(v1alpha1.PolicyReference{
		Kind: e.Object.GetKind(), Namespace: e.Object.GetNamespace(), Name: e.Object.GetName(),
	})
}

func take[T any](e *entry, into *[]T) error {
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(e.Object.Object, &typed); err != nil {
		return fmt.Errorf("reading it: %w", err)
	}
	*into = append(*into, typed)
	return nil
}

// templates are where the pods of a kind are described.
var templates = map[string][]string{
	"v1/Pod":              {},
	"apps/v1/Deployment":  {"spec", "template"},
	"apps/v1/StatefulSet": {"spec", "template"},
	"apps/v1/DaemonSet":   {"spec", "template"},
	"apps/v1/ReplicaSet":  {"spec", "template"},
	"batch/v1/Job":        {"spec", "template"},
	"batch/v1/CronJob":    {"spec", "jobTemplate", "spec", "template"},
}

// addOther takes namespaces, and pods and what makes some. It is true for the latter.
func (i *input) addOther(e *entry, namespace string) bool {
	kind := e.Object.GetAPIVersion() + "/" + e.Object.GetKind()
	if kind == "v1/Namespace" {
		i.Namespaces = append(i.Namespaces, namespaceOf(e.Object.GetName(), e.Object.GetLabels()))
		return false
	}
	path, ok := templates[kind]
	if !ok {
		return false
	}
	if e.Object.GetNamespace() == "" {
		e.Object.SetNamespace(namespace)
		e.name = nameOf(e.Object)
	}
	content := e.Object.Object
	if len(path) > 0 {
		content, _, _ = unstructured.NestedMap(content, path...)
	}
	pod := podOf(e.Object, &unstructured.Unstructured{Object: content})
	pod.Name = fmt.Sprint(len(i.pods)) // names may come twice: generated ones are not known
	i.pods = append(i.pods, template{e, pod, strings.Join(append(slices.Clone(path), "metadata"), ".")})
	return true
}

// namespaceOf has the label that the API server gives each namespace.
func namespaceOf(name string, given map[string]string) corev1.Namespace {
	own := labels.Set{corev1.LabelMetadataName: name}
	return corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels.Merge(given, own)}}
}

// anyNode stands for the node that a pod will be on.
const anyNode = "any-node"

// podOf is a running pod as the template makes it.
func podOf(owner, template *unstructured.Unstructured) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: owner.GetNamespace(), Labels: template.GetLabels(), Annotations: template.GetAnnotations(),
	}}
	pod.Spec.NodeName = anyNode
	pod.Spec.HostNetwork, _, _ = unstructured.NestedBool(template.Object, "spec", "hostNetwork")
	pod.Status.Phase = corev1.PodRunning
	pod.Status.PodIP, pod.Status.PodIPs = "192.0.2.1", []corev1.PodIP{{IP: "192.0.2.1"}}
	return pod
}

// complete makes of the manifests what a cluster would: their pods run on one node
// that has every path, whichever nodes a path selects.
func (i *input) complete() policy.Input {
	in := i.Input
	in.Nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: anyNode}}}
	in.Paths = make([]v1alpha1.MPTCPPath, len(i.Paths))
	for at := range i.Paths {
		i.Paths[at].DeepCopyInto(&in.Paths[at])
		in.Paths[at].Spec.NodeSelector = nil
	}
	for _, template := range i.pods {
		in.Pods = append(in.Pods, *template.pod)
		if !slices.ContainsFunc(in.Namespaces, func(n corev1.Namespace) bool { return n.Name == template.pod.Namespace }) {
			in.Namespaces = append(in.Namespaces, namespaceOf(template.pod.Namespace, nil))
		}
	}
	return in
}

// compile judges all objects that are valid by themselves together.
func (c *checker) compile() {
	result := policy.Compile(c.input.complete())
	for i := range result.Policies {
		if e := c.input.policies[policy.PolicyString(result.Policies[i].Policy)]; e != nil {
			c.policy(e, &result.Policies[i])
		}
	}
	for _, path := range result.Paths {
		if e := c.input.paths[path.Name]; e != nil && path.Error != "" {
			c.add(e.finding("spec", Error, path.Error))
		}
	}
	decisions := map[string]*policy.Decision{}
	for i := range result.Decisions {
		decisions[result.Decisions[i].Pod.String()] = &result.Decisions[i]
	}
	for i := range c.input.pods {
		template := &c.input.pods[i]
		c.pod(template, decisions[template.pod.Namespace+"/"+template.pod.Name])
	}
}

func (c *checker) policy(e *entry, result *policy.PolicyResult) {
	if result.Error != "" {
		c.add(e.finding("", Error, result.Error))
	}
	for _, name := range result.UnknownPaths {
		c.add(e.finding("spec", Warning, fmt.Sprintf("no MPTCPPath %s is among the manifests; %s", name, c.defined())))
	}
	c.rules(e, result.RuleProblems)
	for _, forbidden := range result.ForbiddenPaths {
		c.add(e.finding("spec.paths", Warning, fmt.Sprintf("path %s: %s does not allow it", forbidden.Path, policy.PolicyString(forbidden.By))))
	}
	for _, name := range result.WeightsWithoutCapacity {
		if c.input.paths[string(name)] != nil {
			c.add(e.finding("spec.tenantPaths", Warning, fmt.Sprintf("the weight of path %s has no effect: its MPTCPPath gives no capacity", name)))
		}
	}
	if len(result.Decides) == 0 && len(result.Overridden) > 0 {
		c.add(e.finding("spec", Warning, fmt.Sprintf("it decides for none of the pods that it selects here: %s wins", policy.PolicyString(result.Overridden[0].By))))
	}
}

// rules tells of each path that only rules name once: it may be defined elsewhere.
func (c *checker) rules(e *entry, problems []policy.RuleProblem) {
	told := map[string]bool{}
	for _, problem := range problems {
		if problem.Reason != v1alpha1.ReasonPathNotFound {
			c.add(e.finding(problem.Field, Error, ruleMessage(problem)))
		} else if !told[problem.Message] {
			told[problem.Message] = true
			c.add(e.finding(problem.Field, Warning, problem.Message+" among the manifests; "+c.defined()))
		}
	}
}

func ruleMessage(problem policy.RuleProblem) string {
	if problem.Rule == "" {
		return problem.Message
	}
	return fmt.Sprintf("rule %s: %s; none of the policy's rules is applied", problem.Rule, problem.Message)
}

// defined says which paths the manifests have.
func (c *checker) defined() string {
	if len(c.input.paths) == 0 {
		return "there is none at all"
	}
	return "there are " + list(maps.Keys(c.input.paths))
}

func list(names iter.Seq[string]) string { return strings.Join(slices.Sorted(names), ", ") }
