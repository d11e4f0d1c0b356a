// SPDX-License-Identifier: Apache-2.0

// Package planes finds the planes that nodes' NICs form, by the subnets of their addresses,
// and judges whether connections can be spread over them. It is pure: what nodes and the
// API server say in, a proposal out.
package planes

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/agentapi"
)

// Node is a node of the cluster.
type Node struct {
	Name string
	// Addresses are its InternalIPs.
	Addresses []netip.Addr
	// Survey is what its agent says; nil where Missing says why nobody does.
	Survey  *agentapi.Survey
	Missing string
	// Pods are addresses of pods on it, or such as pods will have.
	Pods []netip.Addr
}

// Plane is a set of NICs, at most one a node, whose addresses are of the same subnets.
type Plane struct {
	// Name is that of the MPTCPPath, there or proposed.
	Name string `json:"name"`
	// Exists: an MPTCPPath has these NICs already.
	Exists bool `json:"exists"`
	// Subnets of the NICs' addresses.
	Subnets []netip.Prefix `json:"subnets"`
	// Routed: its subnets are joined by routers, as those of several racks are.
	Routed bool `json:"routed,omitempty"`
	// ByName: nodes have several NICs in these subnets, which names alone tell apart.
	ByName bool `json:"byName,omitempty"`
	// CapacityMbit is the speed of the slowest NIC; 0 where one is not known.
	CapacityMbit int64 `json:"capacityMbit,omitempty"`
	// Members are the NICs, by nodes.
	Members []Member `json:"members"`
	// pathIsRouted: so the MPTCPPath says that exists.
	pathIsRouted bool
	// apart says why NICs of the same name are not on it.
	apart []string
}

// Member is a node's NIC on a plane.
type Member struct {
	Node      string         `json:"node"`
	NIC       string         `json:"nic"`
	Addresses []netip.Prefix `json:"addresses"`
	nic       *agentapi.NIC
}

// MaxPaths is how many paths a node can have.
const MaxPaths = 8

// item is a NIC that may be on a plane.
type item struct {
	node    int
	nic     *agentapi.NIC
	subnets []netip.Prefix
	group   int
}

// Find finds the planes, those first whose paths exist, else by their names. Those of several
// racks are one when the agents have answered RackQuestions.
func Find(nodes []Node, paths []v1alpha1.MPTCPPath) []Plane {
	found := slices.DeleteFunc(joinRacks(segments(nodes), nodes, paths), func(p Plane) bool { return len(p.Members) < 2 })
	name(found, paths)
	return found
}

func grouped(items []item) (all [][]item) {
	groups := map[int][]item{}
	for _, one := range items {
		groups[one.group] = append(groups[one.group], one)
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		all = append(all, groups[group])
	}
	return all
}

// itemsOf leaves out addresses that several nodes have: those of bridges that each node has
// for itself, as container engines make them.
func itemsOf(nodes []Node) (items []item) {
	owners := map[netip.Addr]int{}
	each(nodes, func(_ int, nic *agentapi.NIC) {
		for _, address := range nic.Addresses {
			owners[address.Addr()]++
		}
	})
	each(nodes, func(node int, nic *agentapi.NIC) {
		one := item{node: node, nic: nic, group: len(items)}
		for _, address := range nic.Addresses {
			if subnet := address.Masked(); !address.IsSingleIP() && owners[address.Addr()] == 1 && !slices.Contains(one.subnets, subnet) {
				one.subnets = append(one.subnets, subnet)
			}
		}
		if len(one.subnets) > 0 {
			items = append(items, one)
		}
	})
	return items
}

// each visits the NICs that may be on a path.
func each(nodes []Node, visit func(node int, nic *agentapi.NIC)) {
	for i := range nodes {
		if nodes[i].Survey == nil {
			continue
		}
		for j := range nodes[i].Survey.NICs {
			if nic := &nodes[i].Survey.NICs[j]; nic.NoPath == "" {
				visit(i, nic)
			}
		}
	}
}

// crowded are the subnets in which a node has several NICs.
func crowded(items []item) map[netip.Prefix]bool {
	type place struct {
		node   int
		subnet netip.Prefix
	}
	seen, several := map[place]bool{}, map[netip.Prefix]bool{}
	for _, one := range items {
		for _, subnet := range one.subnets {
			if seen[place{one.node, subnet}] {
				several[subnet] = true
			}
			seen[place{one.node, subnet}] = true
		}
	}
	return several
}

// join puts NICs into one group that have a subnet in common, and where nodes have several
// there also the name.
func join(items []item, several map[netip.Prefix]bool) {
	first := map[string]int{}
	for i := range items {
		for _, subnet := range items[i].subnets {
			key := subnet.String()
			if several[subnet] {
				key += "%" + items[i].nic.Name
			}
			other, known := first[key]
			if !known {
				first[key] = i
				continue
			}
			merge(items, items[i].group, items[other].group)
		}
	}
}

func merge(items []item, a, b int) {
	for i := range items {
		if items[i].group == max(a, b) {
			items[i].group = min(a, b)
		}
	}
}

func planeOf(group []item, nodes []Node, several map[netip.Prefix]bool) (plane Plane) {
	taken := map[int]bool{}
	for _, one := range group {
		if taken[one.node] {
			continue // the agent takes the first by name, too
		}
		taken[one.node] = true
		plane.Members = append(plane.Members, Member{nodes[one.node].Name, one.nic.Name, one.nic.Addresses, one.nic})
		for _, subnet := range one.subnets {
			plane.ByName = plane.ByName || several[subnet]
			if !slices.Contains(plane.Subnets, subnet) {
				plane.Subnets = append(plane.Subnets, subnet)
			}
		}
	}
	plane.sort()
	return plane
}

func (p *Plane) sort() {
	slices.SortFunc(p.Subnets, func(a, b netip.Prefix) int { return a.Compare(b) })
	slices.SortFunc(p.Members, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	p.CapacityMbit = capacity(p.Members)
}

// capacity is the least, where all are known.
func capacity(members []Member) int64 {
	least := members[0].nic.SpeedMbit
	for _, member := range members {
		least = min(least, member.nic.SpeedMbit)
	}
	return least
}

// name names the planes: by the path that they are, else by the name that all their NICs
// have, else by a number.
func name(found []Plane, paths []v1alpha1.MPTCPPath) {
	taken := map[string]bool{}
	for i := range paths {
		taken[paths[i].Name] = true
	}
	for i := range found {
		plane := &found[i]
		if path := pathOf(plane, paths); path != nil {
			plane.Name, plane.Exists, plane.pathIsRouted = path.Name, true, path.Spec.Underlay == v1alpha1.UnderlayRouted
		}
	}
	for i := range found {
		plane := &found[i]
		if plane.Exists {
			continue
		}
		wanted := cmp.Or(commonName(plane.Members), fmt.Sprintf("path-%d", i+1))
		plane.Name = wanted
		for n := 2; taken[plane.Name]; n++ {
			plane.Name = fmt.Sprintf("%s-%d", wanted, n)
		}
		taken[plane.Name] = true
	}
	slices.SortStableFunc(found, func(a, b Plane) int { return strings.Compare(a.Name, b.Name) })
}

var notInNames = regexp.MustCompile("[^a-z0-9-]+")

// commonName is the name that all NICs have, as an object may have it.
func commonName(members []Member) string {
	for _, member := range members {
		if member.NIC != members[0].NIC {
			return ""
		}
	}
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(members[0].NIC), "-"), "-")
}

// pathOf is the MPTCPPath that has a NIC of the plane; nil where there is none.
func pathOf(plane *Plane, paths []v1alpha1.MPTCPPath) *v1alpha1.MPTCPPath {
	for i := range paths {
		if slices.ContainsFunc(plane.Members, func(m Member) bool { return has(&paths[i].Spec, &m) }) {
			return &paths[i]
		}
	}
	return nil
}
