// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
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

// nameInto adds the pods by their addresses.
func (p *planSketch) nameInto(names map[netip.Addr]string) {
	for i := range p.Spec.Endpoints {
		pod := &p.Spec.Endpoints[i]
		for _, text := range pod.Addresses {
			if address, err := netip.ParseAddr(text); err == nil {
				names[address] = pod.Namespace + "/" + pod.Name
			}
		}
	}
}

// planFinder finds what a topper needs of the plans.
type planFinder interface {
	// find has the plans of the nodes that may have pods which are asked for, and of those
	// where the counts tell enough these alone.
	find(ctx context.Context, o *topOptions) ([]planSketch, []counted, error)
	// names are those of all pods and VMs, as namespace/name, by their addresses.
	names(ctx context.Context) (map[netip.Addr]string, error)
}

// knownPlans are those of a client that has all of them already.
type knownPlans struct{ client.Reader }

func (k knownPlans) find(ctx context.Context, _ *topOptions) ([]planSketch, []counted, error) {
	var plans v1alpha1.MPTCPNodePlanList
	err := k.List(ctx, &plans)
	return sketchesOf(plans.Items), nil, err
}

// names are none that were not found already.
func (knownPlans) names(context.Context) (map[netip.Addr]string, error) { return nil, nil }

// farPlans are at the API server, and many.
type farPlans struct {
	client client.Reader
	tables *tables
}

// find reads the plans of the nodes of pods that are named, or else the counts of all.
func (f farPlans) find(ctx context.Context, o *topOptions) ([]planSketch, []counted, error) {
	if o.namespace != "" {
		plans, err := f.ofPods(ctx, o.namespace, o.pod)
		return plans, nil, err
	}
	all, err := f.tables.plans(ctx)
	if err != nil {
		return nil, nil, err
	}
	var believed []counted
	var others []string
	for _, plan := range all {
		switch {
		case !o.wantsNode(plan.node):
		case plan.summary != nil:
			believed = append(believed, plan)
		default:
			others = append(others, plan.node)
		}
	}
	plans, err := f.some(ctx, others, len(all))
	return plans, believed, err
}

// ofPods has the plans of the nodes on which pods or VMs of a namespace are, one of them
// where it is named. Who may not look for them, or finds none, has all: an agent may know
// what has just gone.
func (f farPlans) ofPods(ctx context.Context, namespace, name string) ([]planSketch, error) {
	selected := fields.Set{}
	if name != "" {
		selected["metadata.name"] = name
	}
	pods, err := f.tables.read(ctx, "/api/v1/namespaces/"+namespace+"/pods", selected)
	if apierrors.IsForbidden(err) {
		return f.all(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("looking for the pods: %w", err)
	}
	nodes, err := f.nodesOfGuests(ctx, func(guest *v1alpha1.MPTCPEndpoint) bool {
		return guest.Namespace == namespace && (name == "" || guest.Name == name)
	})
	if err != nil {
		return nil, err
	}
	if nodes = append(nodes, nodesIn(pods)...); len(nodes) == 0 {
		return f.all(ctx)
	}
	return f.some(ctx, nodes, 0)
}

// nodesIn are those of pods, which a table of pods has.
func nodesIn(pods []row) (nodes []string) {
	for _, pod := range pods {
		if node := pod.text("Node"); node != "" && node != "<none>" {
			nodes = append(nodes, node)
		}
	}
	return nodes
}

func (f farPlans) nodesOfGuests(ctx context.Context, wanted func(*v1alpha1.MPTCPEndpoint) bool) (nodes []string, err error) {
	var guests v1alpha1.MPTCPEndpointList
	err = f.client.List(ctx, &guests)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return nil, fmt.Errorf("looking for the VMs: %w", err)
	}
	for i := range guests.Items {
		if wanted(&guests.Items[i]) {
			nodes = append(nodes, guests.Items[i].Spec.NodeName)
		}
	}
	return nodes, nil
}

// asMetadata asks for a list without what is in the objects.
const asMetadata = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"

// names are those that the plans' metadata have, and of plans without names, or with those of
// another generation, as older controllers leave them, those in the plans.
func (f farPlans) names(ctx context.Context) (map[netip.Addr]string, error) {
	text, err := bodyOf(f.tables.client.Get().AbsPath(plansPath).SetHeader("Accept", asMetadata).Do(ctx))
	if err != nil {
		return nil, err
	}
	var all struct {
		Items []struct {
			Metadata struct {
				Name        string
				Generation  int64
				Annotations map[string]string
			}
		}
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("failed to parse the plans' metadata: %w", err)
	}
	names := map[netip.Addr]string{}
	var unnamed []string
	for i := range all.Items {
		plan := &all.Items[i].Metadata
		of, believed := v1alpha1.NamesIn(plan.Annotations[v1alpha1.AnnotationNames], plan.Generation)
		if !believed {
			unnamed = append(unnamed, plan.Name)
		}
		maps.Copy(names, of)
	}
	plans, err := f.some(ctx, unnamed, len(all.Items))
	for i := range plans {
		plans[i].nameInto(names)
	}
	return names, err
}

// some has the plans of these nodes, of so many, and may have those of others.
func (f farPlans) some(ctx context.Context, nodes []string, all int) ([]planSketch, error) {
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); !fewEnough(len(nodes), all) {
		return f.all(ctx)
	}
	plans, err := somePlans(ctx, f.client, nodes, all)
	return sketchesOf(plans), err
}

// all reads no more of each than what is wanted.
func (f farPlans) all(ctx context.Context) ([]planSketch, error) {
	text, err := bodyOf(f.tables.client.Get().AbsPath(plansPath).SetHeader("Accept", "application/json").Do(ctx))
	if err != nil {
		return nil, err
	}
	var all struct{ Items []planSketch }
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("failed to parse them: %w", err)
	}
	return all.Items, nil
}

func sketchesOf(plans []v1alpha1.MPTCPNodePlan) []planSketch {
	all := make([]planSketch, len(plans))
	for i := range plans {
		plan, sketch := &plans[i], &all[i]
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
	return all
}
