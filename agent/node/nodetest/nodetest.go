// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// Pod is an endpoint that was found.
type Pod struct {
	UID types.UID
	// Name is namespace/name of the pod.
	Name string
	// Number of the endpoint; 0 for its place in the list, from 1.
	Number uint32
	// Interface is the index of the host's end of its interface.
	Interface int
	// Namespace can be opened to enter its network namespace.
	Namespace string
	// Rules of its chain; without any it has none.
	Rules []v1alpha1.PlanRule
}

// Model is of a node with these pods, without a registry of numbers.
func Model(pods ...Pod) *node.Model {
	model := &node.Model{Plan: &v1alpha1.MPTCPNodePlan{}}
	for i, pod := range pods {
		namespace, name, _ := strings.Cut(pod.Name, "/")
		planned := &v1alpha1.PlanEndpoint{UID: pod.UID, Namespace: namespace, Name: name}
		if len(pod.Rules) > 0 {
			planned.Chain = fmt.Sprintf("chain-%d", i)
			model.Plan.Spec.Chains = append(model.Plan.Spec.Chains, v1alpha1.PlanChain{Name: planned.Chain, Rules: pod.Rules})
		}
		if pod.Number == 0 {
			pod.Number = uint32(i + 1)
		}
		model.Plan.Spec.Endpoints = append(model.Plan.Spec.Endpoints, *planned)
		model.Endpoints = append(model.Endpoints, node.Endpoint{
			PlanEndpoint: planned, Number: pod.Number, HostInterface: pod.Interface,
			Found: &endpoints.Endpoint{Path: pod.Namespace, HostIndex: pod.Interface},
		})
	}
	return model
}

// Failures is all that a report says of failures; nil for nothing.
func Failures(report node.Report) error {
	failed := report.Err
	for uid, of := range report.Endpoints {
		if of.Failed != nil {
			failed = errors.Join(failed, fmt.Errorf("endpoint %s: %w", uid, of.Failed))
		}
	}
	return failed
}
