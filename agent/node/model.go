// SPDX-License-Identifier: Apache-2.0

// Package node is the model of a node: what its plan asks for, and what was found of
// it on the node. It is built once a round, never changed afterwards, and all that
// the agent's parts know. Paths, peers, endpoints, tenants and accounts have numbers in it, by
// which programs and maps refer to them: see Registry.
package node

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

// Model is a node as it is and as it should be.
type Model struct {
	// Plan of the node; nil where there is none. Its endpoints are in Endpoints.
	Plan *v1alpha1.MPTCPNodePlan
	// NodeAddresses are the InternalIPs of the Node.
	NodeAddresses []netip.Addr
	// PodRanges are the addresses of the node's pods.
	PodRanges []netip.Prefix
	// Paths of the plan, sorted by name.
	Paths []Path
	// Uplinks are the indexes of further NICs by which packets leave the node: those
	// that belong to no path, and yet carry routes to other nodes.
	Uplinks []int
	// Tunnels are the devices by which packets leave inside of others.
	Tunnels []paths.Tunnel
	// Peers are the other nodes; Unsteered counts further ones, for which there is no
	// number. What is sent to these goes by the cluster network's route.
	Peers     []Peer
	Unsteered int
	// Outside are the destinations outside of the cluster that the plan names.
	Outside []Outside
	// Endpoints are the pods of the plan.
	Endpoints []Endpoint
	// Preferences are the distinct preferences of the endpoints, by their classes.
	Preferences Preferences
	// Tenants are the numbers of namespaces, those of Endpoints.
	Tenants map[string]uint32
	// Accounts are what traffic is counted for, by their numbers; those of some that have no
	// endpoint any more are among them.
	Accounts []Account
	// Look is what was seen of the network namespaces of pods, of the plan and others.
	// A look that was not complete does not tell which are gone.
	Look         endpoints.Snapshot
	LookComplete bool
	// Unclaimed are the interfaces that lead to other network namespaces and belong to
	// no pod of the plan, no path and no uplink: those of pods that the plan does
	// not have, or has not yet. Sorted by index.
	Unclaimed []endpoints.HostEnd
	// Retired numbers belong to nobody any more. What refers to one is to be
	// forgotten: when all parts have done so, it is given anew.
	Retired Numbers

	round  uint64
	exempt map[types.UID]int // interfaces of exempt pods, as they were found last
}

// Path is this node's NIC on one path.
type Path struct {
	Name string
	// Number of the path, below MaxPaths; meaningless while Interface is 0.
	Number uint8
	// Interface is the NIC's index; 0 while the path has none here.
	Interface int
	// Up: subflows can be placed on the path. The programs belong on the NIC in any
	// case, because the cluster network may route through it.
	Up bool
	// Capacity in bits a second; 0 where it is not known.
	Capacity int64
	// Found is what the kernel shows of the NIC, and why it cannot be used.
	Found paths.Path
}

// Peer is another node.
type Peer struct {
	paths.Peer
	Number uint32
}

// Endpoint is a pod of the plan, or a VM.
type Endpoint struct {
	*v1alpha1.PlanEndpoint
	// Addresses of the pod, IPv4 and IPv6, without those that another pod of the plan
	// has or had first, and those whose route leads to another pod.
	Addresses []netip.Addr
	// Number of the endpoint, from 1.
	Number uint32
	// Account is the number of the one that its traffic counts for; 0 while it is not steered.
	Account uint32
	// Class says which paths are good for it: an index into Preferences.
	Class int
	// HostInterface is the index of the host's end of its interface, as it was found
	// last; 0 while it never was.
	HostInterface int
	// Others are further interfaces that may be the one which has the pod's addresses.
	Others []int
	// Bridged: a bridge or a switch has that interface, or a VLAN's is on it. Packets then
	// seem to come from that one, from whichever of its pods.
	Bridged bool
	// Found is what the last look found; nil where it found nothing, for the reason
	// Missing.
	Found   *endpoints.Endpoint
	Missing error
	// Contradiction is why it is not sure which interface and addresses are the pod's;
	// nil where it is.
	Contradiction error

	proven bool // of HostInterface: agents before took the pod's word for it
}

// FullName is the pod's namespace/name, for people.
func (e *Endpoint) FullName() string { return e.Namespace + "/" + e.Name }

// Ingress is the index of the interface by which the endpoint's packets come into
// the node; 0 for unknown.
func (e *Endpoint) Ingress() int {
	if e.Bridged || len(e.Others) > 0 {
		return 0
	}
	return e.HostInterface
}

// Interfaces are all that may have the endpoint's addresses, HostInterface first; none
// while it was never found.
func (e *Endpoint) Interfaces() []int {
	if e.HostInterface == 0 {
		return nil
	}
	return append([]int{e.HostInterface}, e.Others...)
}

// NewPods is what holds for pods that the plan does not have yet; nil for nothing.
func (m *Model) NewPods() *v1alpha1.PlanNewPods {
	if m.Plan == nil {
		return nil
	}
	return m.Plan.Spec.NewPods
}

// Known are the indexes of interfaces of which it is known whose they are: those of
// the plan's pods, of paths and of uplinks.
func (m *Model) Known() map[int]bool {
	known := map[int]bool{}
	for index := range m.Look.Owners {
		known[index] = true
	}
	for i := range m.Endpoints {
		for _, index := range m.Endpoints[i].Interfaces() {
			known[index] = true
		}
	}
	for i := range m.Paths {
		known[m.Paths[i].Found.Index] = true // also where it has no number
	}
	for _, index := range m.Uplinks {
		known[index] = true
	}
	return known
}

// PodDevice is the interface by which the node reaches pods whose own interfaces no route
// leads to, as with some cluster networks; 0 where there is none, or are several.
func (m *Model) PodDevice() (device int) {
	leaves := map[int]bool{loopback: true}
	for _, path := range m.NICs() {
		leaves[path.Interface] = true
	}
	for _, index := range m.Uplinks {
		leaves[index] = true
	}
	for _, pod := range m.Pods() {
		found, err := m.Look.Find(pod.UID)
		if err != nil || found.RoutedBy == 0 || leaves[found.RoutedBy] || found.RoutedBy == device {
			continue
		}
		if device != 0 {
			return 0
		}
		device = found.RoutedBy
	}
	return device
}

// loopback is its index, in every network namespace.
const loopback = 1

// AwaitsPods tells whether new pods are guarded, there are interfaces of unknown ones, and
// the plan has pods that were not found: these may be theirs.
func (m *Model) AwaitsPods() bool {
	if m.NewPods() == nil || len(m.Unclaimed) == 0 {
		return false
	}
	return slices.ContainsFunc(m.Pods(), func(pod endpoints.Pod) bool {
		_, err := m.Look.Find(pod.UID)
		return err != nil && pod.Guest == nil
	})
}

// Pods are the plan's pods, to be looked for: endpoints, and those that are exempt from
// what holds for new ones.
func (m *Model) Pods() (pods []endpoints.Pod) {
	for i := range m.Endpoints {
		endpoint := &m.Endpoints[i]
		pod := endpoints.Pod{UID: string(endpoint.UID), GroupUID: string(endpoint.CgroupUID), Addresses: addressesOf(endpoint.PlanEndpoint)}
		if guest := endpoint.Guest; guest != nil {
			pod.Guest = &endpoints.Guest{Name: guest.Interface.Name, MAC: guest.Interface.MACAddress}
		} else if endpoint.proven {
			pod.Interface = endpoint.HostInterface
		}
		pods = append(pods, pod)
	}
	if m.NewPods() == nil {
		return pods
	}
	for _, exempt := range m.NewPods().Exempt {
		pods = append(pods, endpoints.Pod{
			UID: string(exempt.UID), GroupUID: string(exempt.CgroupUID), Addresses: parse(exempt.Addresses),
			Interface: m.exempt[exempt.UID], Yields: true,
		})
	}
	return pods
}

// NICs are the paths that have a NIC here.
func (m *Model) NICs() []Path {
	return slices.DeleteFunc(slices.Clone(m.Paths), func(path Path) bool { return path.Interface == 0 })
}

// Endpoint is the one with this UID; nil where the plan has none.
func (m *Model) Endpoint(uid types.UID) *Endpoint {
	at := slices.IndexFunc(m.Endpoints, func(e Endpoint) bool { return e.UID == uid })
	if at < 0 {
		return nil
	}
	return &m.Endpoints[at]
}

// Chains are the rules of the plan's chains, by the chains' names.
func (m *Model) Chains() map[string][]v1alpha1.PlanRule {
	chains := map[string][]v1alpha1.PlanRule{}
	if m.Plan == nil {
		return chains
	}
	for i := range m.Plan.Spec.Chains {
		chains[m.Plan.Spec.Chains[i].Name] = m.Plan.Spec.Chains[i].Rules
	}
	return chains
}
