// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sync/errgroup"
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

// planFinder finds what a topper needs of the plans.
type planFinder interface {
	// find has the plans of the nodes that may have pods which are asked for, and of those
	// where the counts tell enough these alone.
	find(ctx context.Context, o *topOptions) ([]planSketch, []counted, error)
	// having has the plans of the pods with these addresses, and may have others. Pods may
	// have several addresses each.
	having(ctx context.Context, addresses []netip.Addr, several bool) ([]planSketch, error)
}

// knownPlans are those of a client that has all of them already.
type knownPlans struct{ client.Reader }

func (k knownPlans) find(ctx context.Context, _ *topOptions) ([]planSketch, []counted, error) {
	var plans v1alpha1.MPTCPNodePlanList
	err := k.List(ctx, &plans)
	return sketchesOf(plans.Items), nil, err
}

func (knownPlans) having(context.Context, []netip.Addr, bool) ([]planSketch, error) { return nil, nil }

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
	plans, err := f.some(ctx, others)
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
	return f.some(ctx, nodes)
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

// fewAddresses are looked for one by one: the API server goes through all pods for each, which
// it has in memory.
const fewAddresses = 32

// having looks for few addresses, and for more in all plans.
func (f farPlans) having(ctx context.Context, addresses []netip.Addr, several bool) ([]planSketch, error) {
	if len(addresses) > fewAddresses {
		return f.all(ctx)
	}
	nodes, err := f.nodesOfGuests(ctx, func(guest *v1alpha1.MPTCPEndpoint) bool {
		return slices.ContainsFunc(guest.Spec.Addresses, func(text v1alpha1.EndpointAddress) bool {
			address, err := netip.ParseAddr(string(text))
			return err == nil && slices.Contains(addresses, address)
		})
	})
	if err != nil {
		return nil, err
	}
	found := make([][]string, len(addresses))
	looking, together := errgroup.WithContext(ctx)
	for i, address := range addresses {
		looking.Go(func() error {
			pods, err := f.tables.read(together, podsPath, fields.Set{"status.podIP": address.String()})
			found[i] = nodesIn(pods)
			return wrap(err, "looking for the pod with address "+address.String())
		})
	}
	err = looking.Wait()
	// Pods are found by the first of their addresses alone.
	if apierrors.IsForbidden(err) || err == nil && several && slices.ContainsFunc(found, func(nodes []string) bool { return nodes == nil }) {
		return f.all(ctx)
	}
	if err != nil {
		return nil, err
	}
	return f.some(ctx, slices.Concat(append(found, nodes)...))
}

func (f farPlans) some(ctx context.Context, nodes []string) ([]planSketch, error) {
	slices.Sort(nodes)
	plans, err := somePlans(ctx, f.client, slices.Compact(nodes))
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
