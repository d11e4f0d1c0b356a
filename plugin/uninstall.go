// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// RemovalState says whether Braid can be removed.
type RemovalState string

// States of a removal.
const (
	// RemovalNothing means: nothing of Braid is left, as far as can be known.
	RemovalNothing RemovalState = "Nothing"
	// RemovalReady means: nodes and pods are as they were; the chart can go.
	RemovalReady RemovalState = "Ready"
	// RemovalInUse means: what agents did is in use, and they must undo it first.
	RemovalInUse RemovalState = "InUse"
	// RemovalLeftovers means: no agent is to run any more, and something is left.
	RemovalLeftovers RemovalState = "Leftovers"
	// RemovalUnknown means: something may be left where it could not be looked.
	RemovalUnknown RemovalState = "Unknown"
)

// Removal is what there is of Braid.
type Removal struct {
	State RemovalState `json:"state"`
	Left  []Remnant    `json:"left,omitempty"`
	// Unknown says what could not be looked at.
	Unknown []string `json:"unknown,omitempty"`

	namespace string
}

// Remnant is one thing of Braid.
type Remnant struct {
	// Node that it is on; empty for an object of the cluster.
	Node   string `json:"node,omitempty"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	Detail string `json:"detail,omitempty"`
	// InUse is true for what must go before the agents do.
	InUse bool `json:"inUse,omitempty"`
	// Remove is the command that removes it.
	Remove string `json:"remove,omitempty"`
}

// remover gathers what is left.
type remover struct {
	*system
	client.Client
	removal   Removal
	installed bool // the DaemonSet is there
	failed    bool // something could not be looked at that can be looked at
}

func (p *plugin) uninstallCommand() *cobra.Command {
	var namespace string
	var check bool
	command := &cobra.Command{
		Use:   "uninstall --check",
		Short: "Say what there is of Braid on the cluster and its nodes, and whether it can be removed",
		Long: `Say what there is of Braid on the cluster and on each node, whether it can be removed
without harm, and after that whether anything is left. It removes nothing itself.

What is on nodes is asked of their agents. Of a node without one it is not known.

The exit code is 0 when the chart can be uninstalled, or nothing is left, and 1 else, and
where the API server or an agent did not answer.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			if !check {
				return errors.New("this command removes nothing: give --check; docs/installation.md says how to uninstall")
			}
			removal, err := p.checkRemoval(command.Context(), namespace)
			if err != nil {
				return err
			}
			if err := p.print(removal, removal.text); err != nil {
				return err
			}
			if removal.State == RemovalNothing || removal.State == RemovalReady {
				return nil
			}
			return ErrNotFine
		},
	}
	addSystem(command, &namespace)
	command.Flags().BoolVar(&check, "check", false, "look, and change nothing")
	return p.addFormat(command)
}

func (p *plugin) checkRemoval(ctx context.Context, namespace string) (*Removal, error) {
	system, err := p.system(namespace)
	if err != nil {
		return nil, err
	}
	c, err := p.client()
	if err != nil {
		return nil, err
	}
	r := &remover{system: system, Client: c, removal: Removal{namespace: namespace}}
	r.findInstalled(ctx)
	r.findPolicies(ctx)
	r.findPods(ctx)
	if err := r.findOnNodes(ctx); err != nil {
		return nil, err
	}
	r.judge()
	return &r.removal, nil
}

func (r *remover) add(remnant Remnant) { r.removal.Left = append(r.removal.Left, remnant) }

func (r *remover) unknown(format string, arguments ...any) {
	r.removal.Unknown = append(r.removal.Unknown, fmt.Sprintf(format, arguments...))
}

// fail notes what could not be looked at, and can be when the reason is gone.
func (r *remover) fail(format string, arguments ...any) {
	r.failed = true
	r.unknown(format, arguments...)
}

// installedKinds are those of the chart's objects whose absence matters, and Leases,
// which components write themselves.
var installedKinds = []struct {
	schema.GroupVersionKind
	namespaced bool
}{
	{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "DaemonSet"}, true},
	{schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, true},
	{schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"}, true},
	{schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}, false},
	{schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRoleBinding"}, false},
	{schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy"}, false},
	{schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicyBinding"}, false},
	{schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicy"}, false},
	{schema.GroupVersionKind{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicyBinding"}, false},
	{schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}, false},
}

// findInstalled finds the objects of an installation.
func (r *remover) findInstalled(ctx context.Context) {
	for _, kind := range installedKinds {
		var options []client.ListOption
		if kind.namespaced {
			options = append(options, client.InNamespace(r.namespace))
		}
		for _, object := range r.list(ctx, kind.GroupVersionKind, options...) {
			if !isInstalled(&object) {
				continue
			}
			r.installed = r.installed || kind.Kind == "DaemonSet"
			r.add(Remnant{Kind: kind.Kind, Name: object.GetName(), Remove: deletion(&object)})
		}
	}
}

// isInstalled goes by the names of Braid's objects: not all of them have labels.
func isInstalled(object *unstructured.Unstructured) bool {
	if object.GetKind() == "CustomResourceDefinition" {
		group, _, _ := unstructured.NestedString(object.Object, "spec", "group")
		return group == v1alpha1.GroupVersion.Group
	}
	return object.GetLabels()["app.kubernetes.io/part-of"] == "braid" || strings.HasPrefix(object.GetName(), "braid-")
}

func deletion(object *unstructured.Unstructured) string {
	kind := strings.ToLower(object.GetKind())
	if kind == "customresourcedefinition" {
		kind = "crd"
	}
	command := fmt.Sprintf("kubectl delete %s %s", kind, object.GetName())
	if object.GetNamespace() != "" {
		command += " --namespace " + object.GetNamespace()
	}
	return command
}

// list lists a kind; nothing where the cluster does not have it.
func (r *remover) list(ctx context.Context, kind schema.GroupVersionKind, options ...client.ListOption) []unstructured.Unstructured {
	var found unstructured.UnstructuredList
	found.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))
	err := r.List(ctx, &found, options...)
	if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		r.fail("objects of kind %s: %v", kind.Kind, err)
	}
	return found.Items
}

// findPolicies finds what makes agents do something, and what they say that they do.
func (r *remover) findPolicies(ctx context.Context) {
	for _, kind := range []string{"MPTCPPolicy", "ClusterMPTCPPolicy", "MPTCPGuardrail", "MPTCPEndpoint", "MPTCPPath"} {
		for _, object := range r.list(ctx, v1alpha1.GroupVersion.WithKind(kind)) {
			name := object.GetName()
			if object.GetNamespace() != "" {
				name = object.GetNamespace() + "/" + name
			}
			r.add(Remnant{Kind: kind, Name: name, InUse: kind != "MPTCPPath" && kind != "MPTCPEndpoint", Remove: deletion(&object)})
		}
	}
}

// findPods finds pods that plans still have, and those whose sockets are MPTCP's by
// Braid.
func (r *remover) findPods(ctx context.Context) {
	for _, object := range r.list(ctx, v1alpha1.GroupVersion.WithKind("MPTCPNodePlan")) {
		endpoints, _, _ := unstructured.NestedSlice(object.Object, "status", "endpoints")
		upgraded := 0
		for _, endpoint := range endpoints {
			fields, _ := endpoint.(map[string]any)
			if state, _, _ := unstructured.NestedString(fields, "socketUpgrade"); state == string(v1alpha1.SocketUpgradeActive) {
				upgraded++
			}
		}
		if len(endpoints) > 0 {
			r.add(Remnant{Node: object.GetName(), Kind: "Pods", Name: fmt.Sprint(len(endpoints)), InUse: true,
				Detail: fmt.Sprintf("programmed, %d of them with upgraded sockets, as its agent last said", upgraded)})
		}
	}
}

// agentLeft is a line of what an agent lists.
type agentLeft struct{ Kind, Name, Detail string }

const nodeCommand = "braid-agent cleanup"

// findOnNodes asks the agents.
func (r *remover) findOnNodes(ctx context.Context) error {
	nodes, err := r.core.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("reading the nodes: %w", err)
	}
	agents, err := r.agents(ctx)
	if err != nil && !errors.Is(err, errNoAgent) { // that none runs is no mistake here
		return err
	}
	var without []string
	for i := range nodes.Items {
		name := nodes.Items[i].Name
		agent := agents[name]
		if agent == nil {
			without = append(without, name)
			continue
		}
		if err := r.askAgent(ctx, name, agent); err != nil {
			r.fail("node %s: %v", name, err)
		}
	}
	if len(without) > 0 {
		r.unknown("no agent runs on %s: programs, pins, routes, rules, neighbours and settings of pods there are not known; "+
			"`%s` there removes them, and `braid-agent cleanup --dry-run` lists them", strings.Join(without, ", "), nodeCommand)
	}
	return nil
}

func (r *remover) askAgent(ctx context.Context, node string, agent *corev1.Pod) error {
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	var out bytes.Buffer
	if err := r.ask(ctx, agent, &out, "cleanup", "--dry-run", "--output", "json"); err != nil {
		return err
	}
	var left []agentLeft
	if err := json.Unmarshal(out.Bytes(), &left); err != nil {
		return fmt.Errorf("reading the agent's answer: %w", err)
	}
	for _, one := range left {
		r.add(Remnant{Node: node, Kind: one.Kind, Name: one.Name, Detail: one.Detail, InUse: true, Remove: nodeCommand})
	}
	return nil
}

// judge decides what can be done.
func (r *remover) judge() {
	left := len(r.removal.Left) > 0
	switch {
	case left && !r.installed:
		r.removal.State = RemovalLeftovers
	case slices.ContainsFunc(r.removal.Left, func(remnant Remnant) bool { return remnant.InUse }):
		r.removal.State = RemovalInUse
	case r.failed:
		r.removal.State = RemovalUnknown
	case !left:
		r.removal.State = RemovalNothing
	default:
		r.removal.State = RemovalReady
	}
}

var verdicts = map[RemovalState]string{
	RemovalNothing: "Nothing of Braid is left.",
	RemovalReady: "Nodes and pods are as they were: Braid can be removed without harm.\n" +
		"  helm uninstall braid --namespace %s\n  kubectl delete crd -l app.kubernetes.io/part-of=braid",
	RemovalInUse: "Braid is in use: agents must undo what they did before they go. Delete the policies, and check again:\n" +
		"  kubectl delete mpol,cmpol,mguard,mep,mpath --all --all-namespaces",
	RemovalUnknown:   "Whether Braid can be removed, or is gone, is not known: mend what kept this command from looking, and check again.",
	RemovalLeftovers: "Braid is not installed any more, and something of it is left: the last column says what removes it.",
}

func (r *Removal) text() string {
	var b strings.Builder
	if len(r.Left) > 0 {
		rows := [][]string{{"WHERE", "KIND", "NAME", "DETAIL", "REMOVE"}}
		for _, remnant := range r.Left {
			where, remove := "cluster", remnant.Remove
			if remnant.Node != "" {
				where = remnant.Node
			}
			if r.State != RemovalLeftovers {
				remove = "" // in the order that is said below
			}
			rows = append(rows, []string{where, remnant.Kind, remnant.Name, remnant.Detail, remove})
		}
		if r.State != RemovalLeftovers {
			rows[0] = rows[0][:4]
		}
		b.WriteString(table(rows...) + "\n")
	}
	for _, unknown := range r.Unknown {
		fmt.Fprintf(&b, "Not known: %s\n", unknown)
	}
	if len(r.Unknown) > 0 && (r.State == RemovalNothing || r.State == RemovalReady) {
		b.WriteString("As far as this command could look:\n")
	}
	b.WriteString(strings.ReplaceAll(verdicts[r.State], "%s", r.namespace) + "\n")
	return b.String()
}
