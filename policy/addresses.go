// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"braid.dev/braid/api/v1alpha1"
)

// Claims is what decides whose an address is: what agents report, and what is known
// of nodes and paths from others.
type Claims struct {
	Members []v1alpha1.MPTCPNode
	Nodes   []corev1.Node
	Paths   []v1alpha1.MPTCPPath
	// Pods that run; needed only where a path is Routed.
	Pods []corev1.Pod
	// PodRanges are ranges of which the admin says that all addresses are pods', beside those
	// of the Nodes' podCIDRs.
	PodRanges []netip.Prefix
}

// NodeAddresses is what becomes of the addresses that one node's agent reports.
type NodeAddresses struct {
	// Confirmed are the node's, sorted by path and address; never nil.
	Confirmed []v1alpha1.ConfirmedAddress
	// PodRanges are where its pods' addresses are. There are none where no path is Routed.
	PodRanges []string
	// PodsLeftOut are how many addresses of its pods are in none of them.
	PodsLeftOut int32
	// Refused are not, in the order in which the agent reports them.
	Refused []RefusedAddress
	// Contested are confirmed, and another node's agent reports them too.
	Contested []RefusedAddress
}

// RefusedAddress is an address that an agent reports and other nodes must not use.
type RefusedAddress struct {
	// Text is what the agent reports, shortened where it is no address.
	Text string
	// Reason is one of those of the condition AddressesConfirmed.
	Reason string
	// Detail says more, for people.
	Detail string
}

// maxConfirmed is that of v1alpha1.MPTCPNodeSpec.confirmed.
const maxConfirmed = 192

// ConfirmAddresses decides for each node, by its name, which of the addresses that
// its agent reports are the node's. An address is, if
//
//   - the Node has it in its status.addresses, and no other Node;
//   - or no Node has it there, it is none of pods, and lies in the addressRanges of
//     the path on which it is reported; where that path has no range of its family,
//     nothing proves it, and it counts all the same.
//
// Of several nodes that report such an address the one has it that had it before, by
// its object; if none had, none gets it. A node keeps one that it does not report
// while it reports none of that family on that path: a NIC that is set down loses
// its IPv6 addresses, and nobody shall take them meanwhile.
func ConfirmAddresses(in Claims) map[string]*NodeAddresses {
	known, ranges := newKnownAddresses(&in), podRanges(&in)
	decided := make(map[string]*NodeAddresses, len(in.Members))
	byAddress := map[netip.Addr][]claim{}
	for i := range in.Members {
		member := &in.Members[i]
		result := &NodeAddresses{Confirmed: []v1alpha1.ConfirmedAddress{}, PodRanges: ranges[member.Name].told, PodsLeftOut: ranges[member.Name].leftOut}
		decided[member.Name] = result
		for _, c := range known.judge(member, result) {
			byAddress[c.address] = append(byAddress[c.address], c)
		}
	}
	for _, claims := range byAddress {
		settle(claims, decided)
	}
	for _, result := range decided {
		slices.SortFunc(result.Confirmed, func(a, b v1alpha1.ConfirmedAddress) int {
			return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(a.Address, b.Address))
		})
		byText := func(a, b RefusedAddress) int { return cmp.Compare(a.Text, b.Text) }
		slices.SortStableFunc(result.Contested, byText)
	}
	return decided
}

// claim is an address that a node may have, as far as it alone is looked at.
type claim struct {
	node    string
	address netip.Addr
	path    v1alpha1.PathName
	proof   v1alpha1.AddressProof
	held    bool // confirmed before
}

// settle gives an address to one of those that claim it, or to none.
func settle(claims []claim, decided map[string]*NodeAddresses) {
	winner := winnerOf(claims)
	for i, c := range claims {
		result := decided[c.node]
		if i == winner {
			result.Confirmed = append(result.Confirmed, v1alpha1.ConfirmedAddress{Address: c.address.String(), Path: c.path, Proof: c.proof})
			if others := nodesOf(claims, i); len(others) > 0 {
				result.Contested = append(result.Contested, RefusedAddress{
					c.address.String(), v1alpha1.ReasonDuplicate, "which " + enumerateNodes(others) + " reports too, stays this node's",
				})
			}
			continue
		}
		detail := "is reported by " + enumerateNodes(nodesOf(claims, i)) + " too, and none had it before"
		if winner >= 0 {
			detail = "belongs to " + claims[winner].node
		}
		result.Refused = append(result.Refused, RefusedAddress{c.address.String(), v1alpha1.ReasonDuplicate, detail})
	}
}

// winnerOf is the index of the claim that holds; -1 for none.
func winnerOf(claims []claim) int {
	if len(claims) == 1 {
		return 0
	}
	winner := -1
	for i, c := range claims {
		if c.proof == v1alpha1.AddressProofNode {
			return i // there is no other: two Nodes with one address prove nothing
		}
		if c.held && winner >= 0 {
			return -1
		}
		if c.held {
			winner = i
		}
	}
	return winner
}

func nodesOf(claims []claim, except int) (names []string) {
	for i, c := range claims {
		if i != except {
			names = append(names, c.node)
		}
	}
	slices.Sort(names)
	return names
}

// enumerateNodes keeps a message short where many nodes claim an address.
func enumerateNodes(names []string) string {
	const shown = 3
	text := strings.Join(names[:min(len(names), shown)], ", ")
	if more := len(names) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// knownAddresses is what is known of addresses from others than agents.
type knownAddresses struct {
	nodes    map[string]labels.Set
	holders  map[netip.Addr]string // by Node.status.addresses; empty for several
	pods     map[netip.Prefix]bool
	podBits  map[int]bool // lengths of these
	allPaths []*addressPath
}

// addressPath is an MPTCPPath with its ranges.
type addressPath struct {
	*path
	ranges []netip.Prefix
}

func newKnownAddresses(in *Claims) *knownAddresses {
	k := &knownAddresses{
		nodes: map[string]labels.Set{}, holders: map[netip.Addr]string{}, pods: map[netip.Prefix]bool{}, podBits: map[int]bool{},
	}
	for _, prefix := range in.PodRanges {
		k.addPods(prefix)
	}
	for i := range in.Nodes {
		k.addNode(&in.Nodes[i])
	}
	for _, p := range compilePaths(in.Paths) {
		withRanges := &addressPath{path: p}
		for _, text := range p.object.Spec.AddressRanges {
			if prefix, err := netip.ParsePrefix(string(text)); err == nil {
				withRanges.ranges = append(withRanges.ranges, prefix.Masked())
			}
		}
		k.allPaths = append(k.allPaths, withRanges)
	}
	return k
}

func (k *knownAddresses) addNode(node *corev1.Node) {
	k.nodes[node.Name] = labels.Set(node.Labels)
	for _, entry := range node.Status.Addresses {
		address, ok := parseAddress(entry.Address)
		if !ok {
			continue // a name
		}
		if holder, taken := k.holders[address]; taken && holder != node.Name {
			k.holders[address] = ""
			continue
		}
		k.holders[address] = node.Name
	}
	for _, prefix := range parsePrefixes(node.Spec.PodCIDRs) {
		k.addPods(prefix)
	}
}

func (k *knownAddresses) addPods(prefix netip.Prefix) {
	k.pods[prefix.Masked()] = true
	k.podBits[prefix.Bits()] = true
}

// maxAddressText is longer than no address: IPv6 with an IPv4 address at its end.
const maxAddressText = 45

// parseAddress reads an address in any form, and gives it in the one that is
// compared: IPv4 as such, nothing with a zone.
func parseAddress(text string) (netip.Addr, bool) {
	if len(text) > maxAddressText {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(text)
	if err != nil || address.Zone() != "" {
		return netip.Addr{}, false
	}
	return address.Unmap(), true
}

// notUnicast are ranges, beside those that netip knows, in which no NIC has an
// address: "this network", and the forms of IPv4 addresses that RFC 4291 gave up.
var notUnicast = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("::/96")}

func isUnicast(address netip.Addr) bool {
	return address.IsGlobalUnicast() && !slices.ContainsFunc(notUnicast, func(p netip.Prefix) bool { return p.Contains(address) })
}

func (k *knownAddresses) isOfPods(address netip.Addr) bool {
	for bits := range k.podBits {
		if prefix, err := address.Prefix(bits); err == nil && k.pods[prefix] {
			return true
		}
	}
	return false
}

// judge lists what a node can have of what its agent reports, and notes what not.
func (k *knownAddresses) judge(member *v1alpha1.MPTCPNode, result *NodeAddresses) (claims []claim) {
	nodeLabels, exists := k.nodes[member.Name]
	if !exists {
		result.Refused = append(result.Refused, RefusedAddress{"everything", v1alpha1.ReasonNodeNotFound, "is refused: there is no Node " + member.Name})
		return nil
	}
	var paths []*addressPath
	for _, p := range k.allPaths {
		if p.nodes.Matches(nodeLabels) {
			paths = append(paths, p)
		}
	}
	for _, c := range reportedClaims(member, result) {
		if len(claims) == maxConfirmed {
			break
		}
		proof, refused := k.prove(&c, paths)
		if refused != nil {
			result.Refused = append(result.Refused, *refused)
			continue
		}
		c.proof = proof
		claims = append(claims, c)
	}
	return claims
}

// reportedClaims lists each address of a node once: those that it reports on paths,
// those that it keeps, then the rest.
func reportedClaims(member *v1alpha1.MPTCPNode, result *NodeAddresses) []claim {
	type family struct {
		path v1alpha1.PathName
		is4  bool
	}
	reported, onPath := map[family]bool{}, map[netip.Addr]bool{}
	read := func(path v1alpha1.PathName, texts []string) (claims []claim) {
		for _, text := range texts {
			address, ok := parseAddress(text)
			if !ok {
				result.refuseMalformed(text)
				continue
			}
			if !onPath[address] {
				reported[family{path, address.Is4()}], onPath[address] = true, path != ""
				claims = append(claims, claim{node: member.Name, address: address, path: path})
			}
		}
		return claims
	}
	var claims []claim
	for i := range member.Status.Paths {
		claims = append(claims, read(member.Status.Paths[i].Name, member.Status.Paths[i].Addresses)...)
	}
	others := read("", member.Status.Addresses)
	var kept []claim
	held := map[netip.Addr]bool{}
	for _, before := range heldBy(member) {
		held[before.address] = true
		if !reported[family{before.path, before.address.Is4()}] {
			kept = append(kept, before)
		}
	}
	return once(slices.Concat(claims, kept, others), held)
}

// refuseMalformed notes a text once, also where it is reported on several paths.
func (a *NodeAddresses) refuseMalformed(text string) {
	refused := RefusedAddress{fmt.Sprintf("%q", shorten(text, maxAddressText)), v1alpha1.ReasonMalformed, "is no address"}
	if !slices.Contains(a.Refused, refused) {
		a.Refused = append(a.Refused, refused)
	}
}

// heldBy are the addresses that were confirmed before.
func heldBy(member *v1alpha1.MPTCPNode) (held []claim) {
	if member.Spec == nil {
		return nil
	}
	for _, c := range member.Spec.Confirmed {
		if address, ok := parseAddress(c.Address); ok {
			held = append(held, claim{node: member.Name, address: address, path: c.Path})
		}
	}
	return held
}

// once leaves out what comes again, and marks what was confirmed before.
func once(claims []claim, held map[netip.Addr]bool) (all []claim) {
	seen := map[netip.Addr]bool{}
	for _, c := range claims {
		if !seen[c.address] {
			seen[c.address], c.held = true, held[c.address]
			all = append(all, c)
		}
	}
	return all
}

// prove says what shows that an address is the node's, or why it is refused. A claim
// on a path that the node does not have is taken for one on none.
func (k *knownAddresses) prove(c *claim, paths []*addressPath) (v1alpha1.AddressProof, *RefusedAddress) {
	refused := func(reason, detail string) (v1alpha1.AddressProof, *RefusedAddress) {
		return "", &RefusedAddress{c.address.String(), reason, detail}
	}
	at := slices.IndexFunc(paths, func(p *addressPath) bool { return p.pathName() == c.path })
	if at >= 0 {
		paths = paths[at : at+1]
	} else {
		c.path = ""
	}
	holder, isNodes := k.holders[c.address]
	switch {
	case !isUnicast(c.address):
		return refused(v1alpha1.ReasonNotUnicast, "is no address that one node alone can have")
	case isNodes && holder == c.node:
		return v1alpha1.AddressProofNode, nil
	case isNodes:
		return refused(v1alpha1.ReasonDuplicate, "is in the status of "+cmp.Or(holder, "several Nodes"))
	case k.isOfPods(c.address):
		return refused(v1alpha1.ReasonPodRange, "lies in the pods' range of a Node")
	}
	proof := proofByRange(c.address, paths)
	switch {
	case proof != "":
		return proof, nil
	case c.path == "":
		return refused(v1alpha1.ReasonUnproven, "is on no path, and the Node does not have it in its status")
	}
	return refused(v1alpha1.ReasonOutOfRange, "lies in none of the addressRanges of path "+string(c.path))
}

// proofByRange is empty where paths that have ranges of the address's family do not
// have it in one.
func proofByRange(address netip.Addr, paths []*addressPath) (proof v1alpha1.AddressProof) {
	for _, p := range paths {
		ofFamily := false
		for _, prefix := range p.ranges {
			if prefix.Contains(address) {
				return v1alpha1.AddressProofRange
			}
			ofFamily = ofFamily || prefix.Addr().Is4() == address.Is4()
		}
		if !ofFamily {
			proof = v1alpha1.AddressProofFirstClaim
		}
	}
	return proof
}
