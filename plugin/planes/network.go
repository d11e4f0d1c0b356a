// SPDX-License-Identifier: Apache-2.0

package planes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"braid.dev/braid/internal/agentapi"
)

// network looks at the way that packets to other nodes' pods take: they must reach the NICs
// as the pods sent them, with the other node as next hop.
func network(nodes []Node, _ []Plane) Finding {
	var encapsulated, astray, lost, overlays []string
	asked := 0
	for i := range nodes {
		if nodes[i].Survey == nil {
			continue
		}
		for _, route := range nodes[i].Survey.Routes {
			asked++
			other := nodeOfPod(nodes, route.To)
			switch text := fmt.Sprintf("from %s to pods of %s", nodes[i].Name, other.Name); {
			case route.Message != "":
				lost = append(lost, text+": "+route.Message)
			case route.Tunnel && !route.Steered:
				encapsulated = append(encapsulated, fmt.Sprintf("%s by %s (%s)", text, route.NIC, route.Overlay))
			case route.Tunnel:
				if !slices.Contains(overlays, route.Overlay) {
					overlays = append(overlays, route.Overlay)
				}
			case !leadsTo(other, &route):
				astray = append(astray, fmt.Sprintf("%s over %s", text, route.Gateway))
			}
		}
	}
	switch {
	case asked == 0:
		return Finding{"cluster network", Warning, "which way packets to other nodes' pods take is not known: no node has a podCIDR or a running pod", "run kubectl braid init again once pods run, or kubectl braid test"}
	case len(encapsulated) > 0:
		return Finding{"cluster network", Failed, "it is an overlay that cannot be steered: " + shorten(encapsulated), "what is encrypted, or encapsulated in a way that is not known, keeps the route of its outer addresses: docs/cni.md says which networks work"}
	case len(lost) > 0:
		return Finding{"cluster network", Warning, shorten(lost), "see that the cluster network runs on these nodes: docs/cni.md"}
	}
	fine := "pods' packets are routed from node to node as they are"
	if len(overlays) > 0 {
		fine = "an overlay that is steered: " + strings.Join(overlays, ", ")
	}
	return verdict("cluster network", fine, Failed, astray,
		"packets over a router are not steered: the cluster network's routes must name the other node, docs/cni.md")
}

// leadsTo: the next hop is an address of the node, or the packet is for a neighbour itself.
func leadsTo(node *Node, route *agentapi.Route) bool {
	if !route.Gateway.IsValid() || slices.Contains(node.Addresses, route.Gateway) || node.Survey == nil {
		return true
	}
	return slices.ContainsFunc(node.Survey.NICs, func(nic agentapi.NIC) bool {
		return slices.ContainsFunc(nic.Addresses, func(p netip.Prefix) bool { return p.Addr() == route.Gateway })
	})
}

func nodeOfPod(nodes []Node, pod netip.Addr) *Node {
	for i := range nodes {
		if slices.Contains(nodes[i].Pods, pod) {
			return &nodes[i]
		}
	}
	return &Node{Name: pod.String()}
}

// routers: a range of addresses proves that a node may have those in it, and nobody may have
// a router's.
func routers(_ []Node, found []Plane) Finding {
	var complaints []string
	seen := map[netip.Addr]bool{}
	for i := range found {
		if found[i].Exists {
			continue
		}
		for _, member := range found[i].Members {
			for _, router := range member.nic.Gateways {
				inside := slices.ContainsFunc(found[i].Subnets, func(p netip.Prefix) bool { return p.Contains(router) })
				if inside && !seen[router] {
					seen[router] = true
					complaints = append(complaints, fmt.Sprintf("%s is in the ranges of %s", router, found[i].Name))
				}
			}
		}
	}
	if len(complaints) == 0 {
		return Finding{}
	}
	return Finding{"routers", Warning, shorten(complaints), "an agent that is taken over could claim it: narrow spec.addressRanges to the nodes' own addresses (docs/security.md)"}
}
