// SPDX-License-Identifier: Apache-2.0

// Package nodetest makes models of nodes for the tests of the agent's parts, by the
// agent's own builder.
package nodetest

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// State is what a test says of a node.
type State struct {
	// NodeAddresses are the InternalIPs of the Node.
	NodeAddresses []netip.Addr
	// PodRanges are the addresses of its pods.
	PodRanges []netip.Prefix

	Paths     []Path
	Uplinks   []int
	Tunnels   []paths.Tunnel
	Peers     []Peer
	Outside   []paths.Outside
	Endpoints []Endpoint
	Tenants   []v1alpha1.PlanTenant
	Chains    []v1alpha1.PlanChain
	// NewPods is what holds for pods that are not in Endpoints.
	NewPods *v1alpha1.PlanNewPods
	// Exempt are the interfaces of exempt pods.
	Exempt map[types.UID]int
}

// Path is a NIC of the node.
type Path struct {
	Name      string
	Interface int
	Up        bool
	Capacity  int64
	// Routed, Addresses and MTU of the NIC.
	Routed    bool
	Addresses []netip.Prefix
	MTU       int
}

// Peer is another node, as agent/paths knows it.
type Peer = paths.Peer

// PeerPath is another node's NIC on one path.
type PeerPath = paths.PeerPath

// Endpoint is a pod of the plan, and where it was found.
type Endpoint struct {
	UID             types.UID // by default the first address
	Namespace, Name string
	Policy          v1alpha1.PolicyReference
	Addresses       []netip.Addr
	Interface       int
	// Tagged has packets of it come from a VLAN's interface on that one.
	Tagged bool
	// Others are further interfaces that may have its addresses.
	Others []int
	// Path of its network namespace.
	NamespacePath string

	// Outside are its destinations outside of the cluster.
	Outside []v1alpha1.CIDR

	Paths             []v1alpha1.PathWeight
	Preferred, Backup []v1alpha1.PathName
	// Class of its preference.
	Class    int
	Share    int32
	SamePath bool
	Subflows v1alpha1.PlanSubflows
	Guard    *v1alpha1.PlanGuard
	Chain    string
	// Proxy has its connections relayed.
	Proxy *v1alpha1.PlanProxy
	// Guest makes it a VM.
	Guest *v1alpha1.PlanGuest
	// VirtualMachine says that it is a pod which holds one.
	VirtualMachine *v1alpha1.PlanVirtualMachine
}

// NewBuilder is that of an agent with these pins.
func NewBuilder(pinPath string) *node.Builder {
	return node.NewBuilder(node.OpenRegistry(pinPath, logr.Discard()))
}

// Model is that of a state.
func (s State) Model(builder *node.Builder) (*node.Model, error) {
	model, err := builder.Build(s.sources())
	if err != nil {
		return nil, err
	}
	model, _, err = builder.Find(model, s.look(), true)
	return model, err
}

// Apply lets a part apply the model of a state, as the agent's loop does. It returns
// all that failed.
func (s State) Apply(ctx context.Context, part node.Part, builder *node.Builder) error {
	model, err := s.Model(builder)
	if err != nil {
		return err
	}
	report := part.Apply(ctx, model)
	if report.Done() {
		_, err := builder.Applied(model, false)
		return err
	}
	if report.Err != nil {
		return report.Err
	}
	for _, of := range report.Endpoints {
		err = cmp.Or(err, of.Failed)
	}
	return err
}

func (s State) sources() node.Sources {
	from := node.Sources{Plan: &v1alpha1.MPTCPNodePlan{}, NodeAddresses: s.NodeAddresses, PodRanges: s.PodRanges, Peers: s.Peers, Outside: s.Outside}
	from.Plan.Spec.Tenants, from.Plan.Spec.Chains, from.Plan.Spec.NewPods = s.Tenants, s.Chains, s.NewPods
	for _, path := range s.Paths {
		from.Resolution.Paths = append(from.Resolution.Paths, paths.Path{
			Name: path.Name, NIC: paths.NIC{Index: path.Interface, Addresses: path.Addresses, MTU: path.MTU}, Usable: path.Up, Routed: path.Routed,
		})
		from.Plan.Spec.Paths = append(from.Plan.Spec.Paths, v1alpha1.PlanPath{Name: v1alpha1.PathName(path.Name), Capacity: path.Capacity})
	}
	from.Resolution.Tunnels = s.Tunnels
	for _, index := range s.Uplinks {
		from.Resolution.Uplinks = append(from.Resolution.Uplinks, paths.NIC{Index: index})
	}
	from.Plan.Spec.Endpoints = s.otherClasses()
	for i := range s.Endpoints {
		from.Plan.Spec.Endpoints = append(from.Plan.Spec.Endpoints, s.Endpoints[i].Plan())
	}
	return from
}

// otherClasses are endpoints whose preferences take the classes before those that the
// state names.
func (s State) otherClasses() (endpoints []v1alpha1.PlanEndpoint) {
	last := 0
	for _, endpoint := range s.Endpoints {
		last = max(last, endpoint.Class)
	}
	for class := range last {
		endpoints = append(endpoints, v1alpha1.PlanEndpoint{
			UID: types.UID(fmt.Sprint("class-", class)), Namespace: "classes", Preference: &v1alpha1.PlanPreference{MaxLossPercent: int32(class + 1)},
		})
	}
	return endpoints
}

// Plan is the endpoint as a plan has it.
func (e *Endpoint) Plan() v1alpha1.PlanEndpoint {
	plan := v1alpha1.PlanEndpoint{
		UID: e.UID, Namespace: cmp.Or(e.Namespace, "team"), Name: e.Name, Policy: e.Policy,
		Paths: e.Paths, Outside: e.Outside, Preferred: e.Preferred, Backup: e.Backup, Guard: e.Guard, Chain: e.Chain, Subflows: e.Subflows, Proxy: e.Proxy, Guest: e.Guest, VirtualMachine: e.VirtualMachine,
	}
	for _, address := range e.Addresses {
		plan.Addresses = append(plan.Addresses, address.String())
	}
	if len(plan.Addresses) > 0 {
		plan.Name, plan.UID = cmp.Or(plan.Name, plan.Addresses[0]), cmp.Or(plan.UID, types.UID(plan.Addresses[0]))
	}
	if e.Class > 0 || e.Share > 0 {
		plan.Preference = &v1alpha1.PlanPreference{MaxLossPercent: int32(e.Class + 1), Weight: e.Share}
	}
	if e.SamePath {
		plan.Subflows.Mode = v1alpha1.SubflowModeNDiffPorts
	}
	return plan
}

func (s State) look() endpoints.Snapshot {
	found := map[string]endpoints.Endpoint{}
	for _, endpoint := range s.Endpoints {
		if endpoint.Interface > 0 {
			found[string(endpoint.Plan().UID)] = endpoints.Endpoint{HostIndex: endpoint.Interface, Others: endpoint.Others, Tagged: endpoint.Tagged, Path: endpoint.NamespacePath}
		}
	}
	look := endpoints.NewSnapshot(found, nil)
	look.Owners = map[int]string{}
	for uid, index := range s.Exempt {
		found[string(uid)] = endpoints.Endpoint{HostIndex: index}
	}
	for uid, endpoint := range found {
		look.Owners[endpoint.HostIndex] = uid
	}
	return look
}
