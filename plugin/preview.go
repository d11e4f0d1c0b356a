// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/plugin/changes"
	"braid.dev/braid/plugin/manifest"
	"braid.dev/braid/policy"
)

// Preview is what manifests would change.
type Preview struct {
	// Refused are those that the API server does not take, with its words.
	Refused []Problem `json:"refused,omitempty"`
	// Policies are those of the manifests, and what becomes of them.
	Policies []changes.Policy `json:"policies,omitempty"`
	// Paths are the manifests' MPTCPPaths, with the nodes that they are for.
	Paths []PreviewedPath `json:"paths,omitempty"`
	// Pods are those for which something else is decided then, and Total how many there are.
	Pods  []changes.Change `json:"pods"`
	Total int              `json:"total"`
	// LeftOut is what was not looked at, because whoever asks may not read it.
	LeftOut []string `json:"leftOut,omitempty"`
}

// PreviewedPath says for which nodes a path is.
type PreviewedPath struct {
	Path    string   `json:"path"`
	Nodes   []string `json:"nodes"`
	Problem string   `json:"problem,omitempty"`
}

func (p *plugin) previewCommand() *cobra.Command {
	var files []string
	command := &cobra.Command{
		Use:   "preview -f FILE|DIRECTORY|-",
		Short: "Say what manifests would change in this cluster, and change nothing",
		Long: `Have the API server judge manifests without keeping them (a dry run), and compile the
cluster's policies with and without them, by the same function as the controller: which
pods are decided for otherwise, which policies are overridden, which paths do not exist, and
what guardrails refuse.

A manifest takes the place of the whole object that is there, as with kubectl replace. The
exit code is 1 where the API server refuses one.`,
		Example: "  kubectl braid preview -f policy.yaml\n  kustomize build . | kubectl braid preview -f -",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			documents, err := manifest.Read(files, command.InOrStdin())
			if err != nil {
				return err
			}
			if len(documents) == 0 {
				return errors.New("what is to be applied? Give --filename")
			}
			preview, err := p.preview(command.Context(), documents)
			if err != nil {
				return err
			}
			if err := p.print(preview, preview.text); err != nil {
				return err
			}
			if len(preview.Refused) > 0 {
				return ErrNotFine
			}
			return nil
		},
	}
	command.Flags().StringSliceVarP(&files, "filename", "f", nil, "file, directory, or - for the standard input; may be given several times")
	addSystem(command, &p.systemNamespace)
	return p.addFormat(command)
}

func (p *plugin) preview(ctx context.Context, documents []manifest.Document) (*Preview, error) {
	c, err := p.connect(ctx)
	if err != nil {
		return nil, err
	}
	found, err := p.read(ctx, c, noPlans)
	if err != nil {
		return nil, err
	}
	namespace, _, err := p.namespace()
	if err != nil {
		return nil, err
	}
	in, err := found.input(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	before := policy.Compile(in)
	preview := &Preview{Total: len(in.Pods), LeftOut: found.leftOut}
	var objects []*unstructured.Unstructured
	for i := range documents {
		object, problem := judged(ctx, c, &documents[i], namespace)
		if problem == nil {
			problem = place(&in, object)
		}
		if problem != nil {
			preview.Refused = append(preview.Refused, *problem)
			continue
		}
		objects = append(objects, object)
	}
	after := policy.Compile(in)
	preview.Pods = changes.Pods(&before, &after)
	for _, object := range objects {
		preview.add(&after, object)
	}
	return preview, ctx.Err()
}

// input is what the controller compiles, as far as it may be read.
func (c *cluster) input(ctx context.Context, reader client.Client, namespace string) (in policy.Input, err error) {
	namespaces, err := readNamespaces(ctx, reader, namespace)
	if err != nil {
		return in, err
	}
	var pods corev1.PodList
	err = reader.List(ctx, &pods)
	if apierrors.IsForbidden(err) {
		c.leftOut = append(c.leftOut, "pods of namespaces other than "+namespace)
		err = reader.List(ctx, &pods, client.InNamespace(namespace))
	}
	if err != nil {
		return in, fmt.Errorf("reading the pods: %w", err)
	}
	for i := range pods.Items {
		c.assumeNodes(pods.Items[i].Spec.NodeName)
	}
	return policy.Input{
		Paths: slices.Clone(c.paths.Items), Policies: slices.Clone(c.policies.Items), ClusterPolicies: slices.Clone(c.clusterPolicies.Items),
		Guardrails: slices.Clone(c.guardrails.Items), Namespaces: namespaces, Nodes: c.nodes.Items, Pods: pods.Items,
		Endpoints: slices.Clone(c.endpoints.Items),
	}, nil
}

// assumeNodes is assumeNode for several: each Node that may not be read has all paths.
func (c *cluster) assumeNodes(name string) {
	known := c.nodes.Items
	c.assumeNode(name)
	if !c.unread(unreadNodes) || name == "" {
		return
	}
	for i := range known {
		if known[i].Name != name {
			c.nodes.Items = append(c.nodes.Items, known[i])
		}
	}
}

// judged is a manifest as the API server would keep it.
func judged(ctx context.Context, c client.Client, document *manifest.Document, namespace string) (*unstructured.Unstructured, *Problem) {
	where := fmt.Sprintf("%s, document %d", document.File, document.Number)
	if document.Problem != "" {
		return nil, &Problem{where, "NotRead", document.Problem}
	}
	object := document.Object.DeepCopy()
	title := strings.TrimSpace(object.GetKind() + " " + object.GetName())
	if object.GroupVersionKind().Group != v1alpha1.GroupVersion.Group {
		return nil, &Problem{title, "NotBraids", "it is no object of Braid: kubectl apply --dry-run=server judges it"}
	}
	namespaced, err := c.IsObjectNamespaced(object)
	if err != nil {
		return nil, &Problem{title, "NotKnown", err.Error()}
	}
	if namespaced && object.GetNamespace() == "" {
		object.SetNamespace(namespace)
	}
	existing := &unstructured.Unstructured{}
	existing.SetGroupVersionKind(object.GroupVersionKind())
	err = c.Get(ctx, client.ObjectKeyFromObject(object), existing)
	switch {
	case apierrors.IsNotFound(err):
		err = c.Create(ctx, object, client.DryRunAll)
	case err == nil:
		object.SetResourceVersion(existing.GetResourceVersion())
		object.SetUID(existing.GetUID())
		err = c.Update(ctx, object, client.DryRunAll)
	}
	if err != nil {
		return nil, &Problem{title, string(apierrors.ReasonForError(err)), err.Error()}
	}
	return object, nil
}

// place puts an object in the place of the one of its name.
func place(in *policy.Input, object *unstructured.Unstructured) *Problem {
	var err error
	switch object.GetKind() {
	case "MPTCPPath":
		in.Paths, err = replaced(in.Paths, object, func(o *v1alpha1.MPTCPPath) client.Object { return o })
	case "MPTCPPolicy":
		in.Policies, err = replaced(in.Policies, object, func(o *v1alpha1.MPTCPPolicy) client.Object { return o })
	case "ClusterMPTCPPolicy":
		in.ClusterPolicies, err = replaced(in.ClusterPolicies, object, func(o *v1alpha1.ClusterMPTCPPolicy) client.Object { return o })
	case "MPTCPGuardrail":
		in.Guardrails, err = replaced(in.Guardrails, object, func(o *v1alpha1.MPTCPGuardrail) client.Object { return o })
	case policy.KindEndpoint:
		in.Endpoints, err = replaced(in.Endpoints, object, func(o *v1alpha1.MPTCPEndpoint) client.Object { return o })
	default:
		err = errors.New("what it would change is not known: it is not compiled")
	}
	if err != nil {
		return &Problem{object.GetKind() + " " + object.GetName(), "NotCompiled", err.Error()}
	}
	return nil
}

func replaced[T any](list []T, object *unstructured.Unstructured, meta func(*T) client.Object) ([]T, error) {
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &typed); err != nil {
		return list, err
	}
	for i := range list {
		if one := meta(&list[i]); one.GetName() == object.GetName() && one.GetNamespace() == object.GetNamespace() {
			list[i] = typed
			return list, nil
		}
	}
	return append(list, typed), nil
}

// add says what becomes of one object.
func (v *Preview) add(after *policy.Result, object *unstructured.Unstructured) {
	if of := changes.Of(after, object.GetKind(), object.GetNamespace(), object.GetName()); of != nil {
		v.Policies = append(v.Policies, *of)
	}
	for i := range after.Paths {
		path := &after.Paths[i]
		if object.GetKind() != "MPTCPPath" || path.Name != object.GetName() {
			continue
		}
		shown := PreviewedPath{path.Name, append([]string{}, path.Nodes...), path.Error}
		if len(path.CutNodes) > 0 {
			shown.Problem = "too many paths on " + enumerate(path.CutNodes)
		}
		v.Paths = append(v.Paths, shown)
	}
}

func (v *Preview) text() string {
	var b strings.Builder
	for _, path := range v.Paths {
		fmt.Fprintf(&b, "path %s: nodes that it is for: %d; kubectl braid init and paths say which have its NIC\n", path.Path, len(path.Nodes))
		if path.Problem != "" {
			fmt.Fprintf(&b, "  %s\n", path.Problem)
		}
	}
	for _, one := range v.Policies {
		fmt.Fprintf(&b, "%s: pods that it decides for: %d, that it guards: %d, for which it is overridden: %d\n", one.Policy, one.Decides, one.Guards, one.Overridden)
		for _, remark := range one.Remarks {
			fmt.Fprintf(&b, "  %s\n", remark)
		}
	}
	fmt.Fprintf(&b, "pods that are treated otherwise then: %d of %d\n", len(v.Pods), v.Total)
	for _, pod := range v.Pods[:min(len(v.Pods), podsShown)] {
		fmt.Fprintf(&b, "  %s\n    now   %s\n    then  %s\n", strings.TrimSuffix(pod.Pod+" on "+pod.Node, " on "), pod.Before, pod.After)
	}
	if more := len(v.Pods) - podsShown; more > 0 {
		fmt.Fprintf(&b, "  and %d more: -o json lists all\n", more)
	}
	return b.String() + list("Refused", v.Refused) + leftOutText(v.LeftOut)
}

// podsShown keeps the text short.
const podsShown = 20
