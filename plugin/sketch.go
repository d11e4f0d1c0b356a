// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// planSketch is what `top` needs of a node's plan: in a large cluster the plans are tens of
// megabytes, most of whose fields it takes longer to read than to fetch.
type planSketch struct {
	Metadata struct{ Name string }
	Spec     struct{ Endpoints []podSketch }
	Status   struct{ Endpoints []resultSketch }
}

// podSketch is a pod or a VM of a plan.
type podSketch struct {
	Namespace, Name string
	Addresses       []string
}

// resultSketch is what the node's agent says of one.
type resultSketch struct {
	Spreading *struct{ Reason string }
}

// sendingPods counts those of which the node's agent said that they send.
func (p *planSketch) sendingPods() (count int) {
	for i := range p.Status.Endpoints {
		if is := p.Status.Endpoints[i].Spreading; is != nil && is.Reason != v1alpha1.ReasonNothingSent {
			count++
		}
	}
	return count
}

// sketches reads all plans.
func (s *system) sketches(ctx context.Context) ([]planSketch, error) {
	text, err := s.core.CoreV1().RESTClient().Get().
		AbsPath("/apis", v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "mptcpnodeplans").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var all struct{ Items []planSketch }
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("failed to parse them: %w", err)
	}
	return all.Items, nil
}

// sketchesBy takes them from a client that has the plans already.
func sketchesBy(ctx context.Context, c client.Reader) ([]planSketch, error) {
	var plans v1alpha1.MPTCPNodePlanList
	if err := c.List(ctx, &plans); err != nil {
		return nil, err
	}
	all := make([]planSketch, len(plans.Items))
	for i := range plans.Items {
		plan, sketch := &plans.Items[i], &all[i]
		sketch.Metadata.Name = plan.Name
		for j := range plan.Spec.Endpoints {
			pod := &plan.Spec.Endpoints[j]
			sketch.Spec.Endpoints = append(sketch.Spec.Endpoints, podSketch{pod.Namespace, pod.Name, pod.Addresses})
		}
		for j := range plan.Status.Endpoints {
			result := resultSketch{}
			if is := plan.Status.Endpoints[j].Spreading; is != nil {
				result.Spreading = &struct{ Reason string }{is.Reason}
			}
			sketch.Status.Endpoints = append(sketch.Status.Endpoints, result)
		}
	}
	return all, nil
}
