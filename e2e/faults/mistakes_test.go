// SPDX-License-Identifier: Apache-2.0

package faults_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// mistakes are those of who writes policies, paths and annotations.
var mistakes = []fault{
	{name: "a policy names a path that does not exist", make: apply(policy("typo", "plain", "  paths: {preferred: [bleu]}")), pod: "plain", told: map[channel]string{
		byStatus: `policy shop/typo: PathNotFound\s+no MPTCPPath is named bleu`, byExplain: `bleu`,
		byEvent: `Warning PathNotFound MPTCPPolicy/typo: .*bleu`, byAlert: `BraidPolicyNotProgrammed kind=MPTCPPolicy namespace=shop policy=typo`,
	}, remedy: `there are blue|the name is corrected`, do: "one of the names that the message lists"},
	{name: "rules contradict each other", make: apply(policy("contrary", "nobody", `  rules:
  - {name: spare, match: {paths: [red]}, actions: [{type: SetBackup, setBackup: {backup: true}}]}
  - {name: no-spare, match: {paths: [red]}, actions: [{type: SetBackup, setBackup: {backup: false}}]}`)), told: map[channel]string{
		byStatus: `policy shop/contrary: ContradictingRules\s+rule no-spare: spec.rules\[1\]`,
		byEvent:  `Warning ContradictingRules MPTCPPolicy/contrary: .*no-spare`,
	}, remedy: `until this is corrected`, do: "the rule that the message names"},
	{name: "a policy runs a program that is nowhere", make: apply(clusterPolicy("lost", "nobody", `  programs:
  - {name: own, configMap: {name: no-such-programs, key: own.o}}
  rules:
  - {name: own, actions: [{type: RunProgram, runProgram: {program: own}}]}`)), told: map[channel]string{
		byStatus: `cluster policy lost: ProgramNotFound\s+.*no-such-programs`,
		byEvent:  `Warning ProgramNotFound ClusterMPTCPPolicy/lost: .*no-such-programs`,
	}, remedy: `ConfigMap.*no-such-programs`, do: "the ConfigMap that the message names"},
	{name: "two policies select the same pods", make: apply(policy("second", "third", "  priority: -5")), pod: "third", told: map[channel]string{
		byStatus: `policy shop/second: Overridden\s+another policy takes precedence`, byExplain: `MPTCPPolicy.*shop/second`,
		byEvent: `Overridden MPTCPPolicy/second: another policy takes precedence`,
	}, remedy: `priority`, do: "`spec.priority`, or narrower selectors"},
	{name: "a policy selects no pod", make: apply(policy("nobody", "wbe", "")), pod: "loner", told: map[channel]string{
		byStatus: `policy shop/nobody: NoPodsSelected\s+no running pod is selected`, byExplain: `shop/nobody selects app=wbe, and the pod's labels are app=loner`,
	}, remedy: `compare its selectors with kubectl get pods --show-labels`, do: "its selectors against the pods' labels"},
	{name: "an annotation has a typo", make: annotate("server", "braid.dev/prefer-paths", "green"), pod: "server", told: map[channel]string{
		byStatus: `policy shop/spread: HintsRefused\s+.*prefer-paths`, byExplain: `braid.dev/prefer-paths`,
		byEvent: `Warning HintUnknown Pod/server: .*braid.dev/preferred-paths`,
	}, remedy: `braid.dev/preferred-paths`, do: "one of the annotations that the Event lists"},
	{name: "a tenant prefers a path that guardrails forbid", make: apply(guardrail("careful", "stranger", "  paths: [blue]"), policy("strange", "stranger", "  paths: {allowed: [blue, red]}")), pod: "stranger", told: map[channel]string{
		byStatus: `policy shop/strange: PathNotAllowed\s+guardrails do not let .* red .*careful`, byExplain: `red.*careful`,
		byEvent: `Warning PathNotAllowed MPTCPPolicy/strange: .*careful`,
	}, remedy: `guardrails do not let pods of this policy use`, do: "the policy, or the guardrail that the message names"},
	{name: "a path selects no node", make: apply(path("nowhere", "  interfaces: [lan9]\n  nodeSelector: {matchLabels: {rack: none}}")), told: map[channel]string{
		byStatus: `path nowhere: NoNodes\s+no node is selected`, byEvent: `NoNodes MPTCPPath/nowhere: no node is selected`,
	}, remedy: `check spec.nodeSelector`, do: "`spec.nodeSelector` of the MPTCPPath"},
	{name: "two paths have the same NIC", make: apply(path("zgreen", "  interfaces: [green]")), told: map[channel]string{
		byStatus: `path zgreen: InterfaceNotFound\s+no NIC matches`, byExplain: `zgreen.*belongs to path green already`,
		byEvent: `Warning InterfaceNotFound MPTCPPath/zgreen: `, byAlert: `BraidPathDown node=node1 path=zgreen`,
	}, remedy: `spec.interfaces`, do: "narrower patterns in `spec.interfaces`"},
	{name: "weights have no capacity to be shares of", make: apply(tenants("weighed", "  tenantPaths: [{path: red, weight: 3}]")), told: map[channel]string{
		byStatus: `guardrail weighed: CapacityMissing\s+the weights of red have no effect`, byEvent: `Warning CapacityMissing MPTCPGuardrail/weighed: `,
	}, remedy: `set spec.capacity there`, do: "`spec.capacity` of the MPTCPPath"},
}

// object is a manifest of one.
type object struct{ kind, namespace, name, text string }

func manifest(kind, namespace, name, spec string) object {
	text := "apiVersion: braid.dev/v1alpha1\nkind: " + kind + "\nmetadata:\n  name: " + name + "\n"
	if namespace != "" {
		text += "  namespace: " + namespace + "\n"
	}
	return object{kind, namespace, name, text + "spec:\n" + spec + "\n"}
}

func policy(name, app, spec string) object {
	return manifest("MPTCPPolicy", shop, name, "  podSelector: {matchLabels: {app: "+app+"}}\n"+spec)
}

func clusterPolicy(name, app, spec string) object {
	return manifest("ClusterMPTCPPolicy", "", name, "  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}\n  podSelector: {matchLabels: {app: "+app+"}}\n"+spec)
}

func guardrail(name, app, spec string) object {
	return manifest("MPTCPGuardrail", "", name, "  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}\n  podSelector: {matchLabels: {app: "+app+"}}\n"+spec)
}

// tenants is a guardrail for namespaces as a whole.
func tenants(name, spec string) object {
	return manifest("MPTCPGuardrail", "", name, "  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}\n  podSelector: {}\n"+spec)
}

func path(name, spec string) object { return manifest("MPTCPPath", "", name, spec) }

// apply gives manifests to kubectl.
func apply(objects ...object) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		for _, one := range objects {
			s.mend(func() {
				arguments := []string{"delete", "--ignore-not-found", one.kind, one.name}
				if one.namespace != "" {
					arguments = append(arguments, "--namespace", one.namespace)
				}
				if out, err := s.Kubectl(context.Background(), arguments...).CombinedOutput(); err != nil {
					t.Errorf("deleting %s %s: %v: %s", one.kind, one.name, err, out)
				}
			})
			if out, err := s.TryApply(t, one.text); err != nil {
				t.Errorf("applying %s %s: %v: %s", one.kind, one.name, err, strings.TrimSpace(out))
			}
		}
	}
}

func annotate(name, key, value string) func(*testing.T, *scene) {
	return func(t *testing.T, s *scene) {
		set := func(value string) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name}}
			patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value)
			check(t, s.Client.Patch(context.Background(), pod, client.RawPatch("application/merge-patch+json", []byte(patch))))
		}
		s.mend(func() { set("null") })
		set(fmt.Sprintf("%q", value))
	}
}
