// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"slices"

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
	endpoints       v1alpha1.MPTCPEndpointList
	nodes           corev1.NodeList
	own             *components
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

	leftOut []string
}

func (p *plugin) reader(c client.Reader) (*clusterReader, error) {
	tenant, _, err := p.namespace()
	return &clusterReader{client: c, clock: &p.clock, namespace: p.systemNamespace, tenant: tenant}, err
}

func (p *plugin) read(ctx context.Context) (client.Client, *cluster, error) {
	c, err := p.connect(ctx)
	if err != nil {
		return nil, nil, err
	}
	reader, err := p.reader(c)
	if err != nil {
		return nil, nil, err
	}
	found, err := reader.read(ctx)
	return c, found, err
}

func (r *clusterReader) read(ctx context.Context) (*cluster, error) {
	found := &cluster{}
	for _, kind := range []struct {
		what string
		list client.ObjectList
	}{
		{unreadPaths, &found.paths}, {"ClusterMPTCPPolicies: one of them may decide for pods in the place of a policy", &found.clusterPolicies},
		{"MPTCPGuardrails: they may forbid paths and annotations", &found.guardrails},
		{unreadMembers, &found.members}, {unreadPlans, &found.plans}, {unreadNodes, &found.nodes},
	} {
		if _, err := r.list(ctx, kind.what, kind.list); err != nil {
			return nil, err
		}
	}
	if err := r.readPolicies(ctx, &found.policies); err != nil {
		return nil, err
	}
	err := r.readEndpoints(ctx, &found.endpoints)
	if err != nil {
		return nil, err
	}
	found.own, err = r.readComponents(ctx)
	found.leftOut = r.leftOut
	return found, err
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
