// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
	"braid.dev/braid/policy"
)

// Explanation is what was decided for a pod, why, and what became of it.
type Explanation struct {
	Decision policy.Decision `json:"decision"`
	// Rules are the pod's chain as it is compiled, in the order in which they run.
	Rules []v1alpha1.PlanRule `json:"rules,omitempty"`
	// Result is what the node's agent says; nil before it has said anything.
	Result *v1alpha1.EndpointStatus `json:"result,omitempty"`
	// Silent says since when the agent does not report; Result is old then.
	Silent string `json:"silent,omitempty"`
	// Traffic is what the pod's connections do; nil where its node's agent was not asked.
	Traffic *agentapi.Spreading `json:"traffic,omitempty"`
	// Remedy is what to do where the traffic is not spread.
	Remedy string `json:"remedy,omitempty"`
}

func (p *plugin) explainCommand() *cobra.Command {
	command := &cobra.Command{
		Use:     "explain POD",
		Short:   "Say which policies and hints apply to a pod, which lost and why, and what became of it",
		Example: "  kubectl braid explain web-0 --namespace shop",
		Args:    cobra.ExactArgs(1),

		ValidArgsFunction: p.podNames,
		RunE: func(command *cobra.Command, arguments []string) error {
			explanation, err := p.explain(command.Context(), arguments[0])
			if err != nil {
				return err
			}
			if explanation.Result != nil && explanation.Silent == "" {
				if err := p.addTraffic(command.Context(), explanation); err != nil {
					fmt.Fprintln(command.ErrOrStderr(), "What the pod's connections do is not known:", err)
				}
			}
			return p.print(explanation, explanation.text)
		},
	}
	addSystem(command, &p.systemNamespace)
	return p.addFormat(command)
}

// addTraffic adds what the pod's connections do. Everything else is told without.
func (p *plugin) addTraffic(ctx context.Context, e *Explanation) error {
	s, err := p.system(p.systemNamespace)
	if err != nil {
		return err
	}
	of := e.Decision.Pod
	e.Traffic, err = s.trafficOf(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name}, Spec: corev1.PodSpec{NodeName: of.Node},
	})
	if e.Traffic != nil {
		e.Remedy = remedies[e.Traffic.Reason]
	}
	return err
}

// explain compiles the policies as the controller does, so that it also tells of
// what the controller has not seen yet.
func (p *plugin) explain(ctx context.Context, name string) (*Explanation, error) {
	c, found, err := p.read(ctx)
	if err != nil {
		return nil, err
	}
	namespace, _, err := p.namespace()
	if err != nil {
		return nil, err
	}
	var pod corev1.Pod
	if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod); err != nil {
		return nil, fmt.Errorf("reading pod %s/%s: %w", namespace, name, err)
	}
	var namespaces corev1.NamespaceList
	if err := c.List(ctx, &namespaces); err != nil {
		return nil, fmt.Errorf("reading the namespaces: %w", err)
	}
	compiled := policy.Compile(policy.Input{
		Paths: found.paths.Items, Policies: found.policies.Items, ClusterPolicies: found.clusterPolicies.Items,
		Guardrails: found.guardrails.Items,
		Namespaces: namespaces.Items, Nodes: found.nodes.Items, Pods: []corev1.Pod{pod},
	})
	explanation := &Explanation{Decision: compiled.Decisions[0], Result: found.result(&pod), Silent: found.silence(pod.Spec.NodeName)}
	if is := explanation.spreading(); is != nil {
		explanation.Remedy = remedies[is.Reason]
	}
	plan := compiled.Plans[pod.Spec.NodeName]
	for _, chain := range plan.Chains {
		if chain.Name == explanation.Decision.Chain {
			explanation.Rules = chain.Rules
		}
	}
	return explanation, nil
}

// result is what the agent of the pod's node says.
func (c *cluster) result(pod *corev1.Pod) *v1alpha1.EndpointStatus {
	for i := range c.plans.Items {
		plan := &c.plans.Items[i]
		if plan.Name != pod.Spec.NodeName {
			continue
		}
		for j := range plan.Status.Endpoints {
			if plan.Status.Endpoints[j].UID == pod.UID {
				return &plan.Status.Endpoints[j]
			}
		}
	}
	return nil
}

func (e *Explanation) text() string {
	var b strings.Builder
	e.writeTraffic(&b)
	b.WriteString(e.Decision.String())
	for i, rule := range e.Rules {
		if i == 0 {
			b.WriteString("  chain:\n")
		}
		fmt.Fprintf(&b, "    %d. %s (%s): %s\n", i+1, rule.Name, rule.Policy, actions(rule.Actions))
	}
	e.writeResult(&b)
	return b.String()
}

// spreading is what the pod's status says; nil where it does not.
func (e *Explanation) spreading() *v1alpha1.SpreadingStatus {
	if e.Result == nil || e.Silent != "" {
		return nil
	}
	return e.Result.Spreading
}

// writeTraffic leads: it is what all the rest is for.
func (e *Explanation) writeTraffic(b *strings.Builder) {
	is := e.spreading()
	switch {
	case e.Traffic != nil:
		b.WriteString(e.Traffic.Text(""))
	case is != nil:
		fmt.Fprintf(b, "traffic: %s\n", agentapi.Told(is))
	}
	if e.Remedy != "" {
		fmt.Fprintf(b, "what to do: %s\n", e.Remedy)
	}
}

func actions(list []v1alpha1.Action) string {
	names := make([]string, 0, len(list))
	for _, action := range list {
		names = append(names, string(action.Type))
	}
	return strings.Join(names, ", ")
}

func (e *Explanation) writeResult(b *strings.Builder) {
	if e.Decision.Winner == nil {
		return
	}
	switch {
	case e.Silent != "":
		fmt.Fprintf(b, "  on the node: not known: %s\n", e.Silent)
		return
	case e.Result == nil:
		b.WriteString("  on the node: its agent has not reported this pod yet\n")
		return
	}
	fmt.Fprintf(b, "  on the node: %s", e.Result.State)
	if e.Result.Message != "" {
		fmt.Fprintf(b, ": %s", e.Result.Message)
	}
	b.WriteString("\n")
	for _, hint := range e.Result.Hints {
		b.WriteString(strings.TrimRight(fmt.Sprintf("    %s: %s %s", hint.Annotation, hint.State, hint.Message), " ") + "\n")
	}
	for _, rule := range e.Result.Rules {
		b.WriteString(strings.TrimRight(fmt.Sprintf("    rule %s: %s %s", rule.Name, rule.Mechanism, rule.Message), " ") + "\n")
	}
}
