// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"braid.dev/braid/api/v1alpha1"
)

// cluster is what the API server has, as far as one may read it.
type cluster struct {
	paths           v1alpha1.MPTCPPathList
	policies        v1alpha1.MPTCPPolicyList
	clusterPolicies v1alpha1.ClusterMPTCPPolicyList
	guardrails      v1alpha1.MPTCPGuardrailList
	members         v1alpha1.MPTCPNodeList
	plans           v1alpha1.MPTCPNodePlanList
	// counted are plans that were not read, because their counts say all that is wanted.
	counted   []counted
	endpoints v1alpha1.MPTCPEndpointList
	nodes     corev1.NodeList
	own       *components
	// leftOut is what may not be read.
	leftOut []string
}

// What may not be read, where that matters.
const (
	unreadPaths   = "MPTCPPaths"
	unreadMembers = "MPTCPNodes: the state of NICs"
	unreadPlans   = "MPTCPNodePlans: what agents say of pods"
	unreadNodes   = "Nodes"
)

func (c *cluster) unread(what string) bool { return slices.Contains(c.leftOut, what) }

// clusterReader reads what one may.
type clusterReader struct {
	client client.Reader
	clock  *serverClock
	// namespace is Braid's own, tenant that of whoever may not read all policies.
	namespace, tenant string
	// noWorkloads says that Braid's programs are no pods of this cluster.
	noWorkloads bool
	// plansOf are the nodes whose plans are read; nil for all.
	plansOf []string
	// tables are where plans are counted, of which only those are read then that have more
	// to tell; nil where all that plansOf asks for are read.
	tables *tables

	leftOut []string
}

func (p *plugin) reader(c client.Reader) (*clusterReader, error) {
	tenant, _, err := p.namespace()
	return &clusterReader{client: c, clock: &p.clock, namespace: p.systemNamespace, tenant: tenant}, err
}

// noPlans is for what does not tell of pods: plans are most of a large cluster.
var noPlans = []string{}

// read reads all but the plans of nodes that are not asked for.
func (p *plugin) read(ctx context.Context, c client.Client, plansOf []string) (*cluster, error) {
	reader, err := p.reader(c)
	if err != nil {
		return nil, err
	}
	reader.plansOf = plansOf
	return reader.read(ctx)
}

// read reads the kinds at once, the answers to some of which are long.
func (r *clusterReader) read(ctx context.Context) (*cluster, error) {
	found := &cluster{}
	steps := []func(context.Context, *clusterReader) error{
		listed(unreadPaths, &found.paths),
		listed("ClusterMPTCPPolicies: one of them may decide for pods in the place of a policy", &found.clusterPolicies),
		listed("MPTCPGuardrails: they may forbid paths and annotations", &found.guardrails),
		listed(unreadMembers, &found.members),
		func(ctx context.Context, r *clusterReader) error { return r.readPlans(ctx, found) },
		listed(unreadNodes, &found.nodes),
		func(ctx context.Context, r *clusterReader) error { return r.readPolicies(ctx, &found.policies) },
		func(ctx context.Context, r *clusterReader) error { return r.readEndpoints(ctx, &found.endpoints) },
		func(ctx context.Context, r *clusterReader) (err error) {
			found.own, err = r.readComponents(ctx)
			return err
		},
	}
	readers := make([]clusterReader, len(steps))
	all, together := errgroup.WithContext(ctx)
	for i, step := range steps {
		readers[i] = *r
		all.Go(func() error { return step(together, &readers[i]) })
	}
	err := all.Wait()
	for i := range readers {
		found.leftOut = append(found.leftOut, readers[i].leftOut...)
	}
	if err == nil && found.counted != nil {
		err = r.readUncounted(ctx, found)
	}
	return found, err
}

// listed reads all objects of a kind.
func listed(what string, list client.ObjectList) func(context.Context, *clusterReader) error {
	return func(ctx context.Context, r *clusterReader) error {
		_, err := r.list(ctx, what, list)
		return err
	}
}

// readPlans reads those of the nodes that matter: each names all pods of its node.
func (r *clusterReader) readPlans(ctx context.Context, found *cluster) (err error) {
	switch {
	case r.tables != nil:
		found.counted, err = r.tables.plans(ctx)
	case r.plansOf == nil:
		err = r.client.List(ctx, &found.plans)
	default:
		found.plans.Items, err = plansByName(ctx, r.client, r.plansOf)
	}
	if apierrors.IsForbidden(err) {
		r.leaveOut(unreadPlans)
		return nil
	}
	return wrap(err, "reading "+unreadPlans)
}

// readUncounted reads the plans of which the counts do not tell enough.
func (r *clusterReader) readUncounted(ctx context.Context, found *cluster) (err error) {
	nodes := found.uncounted()
	found.plans.Items, err = somePlans(ctx, r.client, nodes, len(found.counted))
	if err != nil {
		return fmt.Errorf("reading %s: %w", unreadPlans, err)
	}
	read := map[string]bool{}
	for i := range found.plans.Items {
		read[found.plans.Items[i].Name] = true
	}
	for _, node := range nodes { // and those that are gone meanwhile
		read[node] = true
	}
	found.counted = slices.DeleteFunc(found.counted, func(plan counted) bool { return read[plan.node] })
	return nil
}

// uncounted are the nodes whose plans have more to tell than their counts: a silent agent's
// counts are as old as all that it said, and what is wrong has a name. Of pods with plain TCP
// some are named.
func (c *cluster) uncounted() (nodes []string) {
	named := 0
	for _, plan := range c.counted {
		silent, s := c.silence(plan.node) != "", plan.summary
		if s == nil || silent || s.Noteworthy > 0 || s.PlainTCP > 0 && named < maxEnumerated {
			nodes = append(nodes, plan.node)
			if s != nil && !silent {
				named += int(s.PlainTCP)
			}
		}
	}
	return nodes
}

const (
	// mostPlans is how many plans are read one by one however few there are.
	mostPlans = 64
	// mostOfMany is how many are where there are many; see fewEnough.
	mostOfMany = 200
)

// fewEnough says that so many of all plans are read one by one: a list of all costs as much as
// there are plans.
func fewEnough(wanted, all int) bool { return wanted <= max(mostPlans, min(all/4, mostOfMany)) }

// somePlans has the plans of these nodes, of so many, and may have those of others.
func somePlans(ctx context.Context, c client.Reader, nodes []string, all int) ([]v1alpha1.MPTCPNodePlan, error) {
	if fewEnough(len(nodes), all) {
		plans, err := plansByName(ctx, c, nodes)
		if err == nil || !apierrors.IsForbidden(err) {
			return plans, err
		}
	}
	var list v1alpha1.MPTCPNodePlanList
	err := c.List(ctx, &list)
	return list.Items, err
}

// plansByName has the plans of these nodes that there are, in the order of these.
func plansByName(ctx context.Context, c client.Reader, nodes []string) (plans []v1alpha1.MPTCPNodePlan, err error) {
	read := make([]v1alpha1.MPTCPNodePlan, len(nodes))
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(askedAtOnce)
	for i, node := range nodes {
		all.Go(func() error {
			return client.IgnoreNotFound(c.Get(ctx, client.ObjectKey{Name: node}, &read[i]))
		})
	}
	if err := all.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(read, func(plan v1alpha1.MPTCPNodePlan) bool { return plan.UID == "" }), nil
}

// readPolicies reads those of all namespaces, or else those of the tenant's.
func (r *clusterReader) readPolicies(ctx context.Context, list *v1alpha1.MPTCPPolicyList) error {
	read, err := r.list(ctx, "MPTCPPolicies of namespaces other than "+r.tenant, list)
	if err != nil || read {
		return err
	}
	_, err = r.list(ctx, "MPTCPPolicies of namespace "+r.tenant, list, client.InNamespace(r.tenant))
	return err
}

// readEndpoints reads the VMs of all namespaces, or else those of the tenant's. Those of
// others matter to nobody who may not read them, and an older cluster has none.
func (r *clusterReader) readEndpoints(ctx context.Context, list *v1alpha1.MPTCPEndpointList) error {
	err := r.client.List(ctx, list)
	if apierrors.IsForbidden(err) {
		err = r.client.List(ctx, list, client.InNamespace(r.tenant))
	}
	if err == nil || apierrors.IsForbidden(err) || meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("reading the MPTCPEndpoints: %w", err)
}

// list is false where the objects may not be read, which is noted.
func (r *clusterReader) list(ctx context.Context, what string, list client.ObjectList, options ...client.ListOption) (bool, error) {
	err := r.client.List(ctx, list, options...)
	switch {
	case apierrors.IsForbidden(err):
		r.leaveOut(what)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading %s: %w", what, err)
	}
	return true, nil
}

func (r *clusterReader) leaveOut(what string) { r.leftOut = append(r.leftOut, what) }

// member is the node's MPTCPNode; nil where there is none.
func (c *cluster) member(node string) *v1alpha1.MPTCPNode {
	for i := range c.members.Items {
		if c.members.Items[i].Name == node {
			return &c.members.Items[i]
		}
	}
	return nil
}

// silence says since when a node's agent does not report; empty while it does, and where
// that is not known.
func (c *cluster) silence(node string) string {
	if member := c.member(node); member != nil {
		return c.silenceOf(member)
	}
	return ""
}

func (c *cluster) silenceOf(member *v1alpha1.MPTCPNode) string {
	if c.own == nil {
		return ""
	}
	return c.own.silence(member)
}
