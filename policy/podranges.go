// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"braid.dev/braid/api/v1alpha1"
)

// maxPodRanges is that of v1alpha1.MPTCPNodeSpec.podRanges.
const maxPodRanges = 64

// How many bits the addresses share that a node gets at a time where the cluster network does
// not go by podCIDRs: those of Calico's IPAM.
const (
	ipv4Block = 26
	ipv6Block = 122
)

// nodeRanges are where a node's pods are.
type nodeRanges struct {
	told []string
	// leftOut are how many addresses of its pods are in none of them.
	leftOut int32
}

// PodOwners tell whose pods have an address: the longest range that has it says it.
type PodOwners struct {
	nodes   map[netip.Prefix]string
	lengths []int // that ranges have, the longest first
}

func (o *PodOwners) add(prefix netip.Prefix, node string) {
	if o.nodes == nil {
		o.nodes = map[netip.Prefix]string{}
	}
	mix(o.nodes, prefix.Masked(), node)
	if !slices.Contains(o.lengths, prefix.Bits()) {
		o.lengths = append(o.lengths, prefix.Bits())
		slices.SortFunc(o.lengths, func(a, b int) int { return b - a })
	}
}

// of is the range that has the address, and whose it is: "" where it is several nodes'.
func (o *PodOwners) of(address netip.Addr) (found netip.Prefix, node string) {
	for _, length := range o.lengths {
		prefix, err := address.Prefix(length)
		if err != nil {
			continue // of the other version of IP
		}
		if node, is := o.nodes[prefix]; is {
			return prefix, node
		}
	}
	return netip.Prefix{}, ""
}

// Misses tells of a pod that it has an address which is taken for no pod's or for one of another
// node's pods.
func (o *PodOwners) Misses(pod *corev1.Pod) bool {
	return slices.ContainsFunc(ownAddresses(pod), func(address netip.Addr) bool {
		_, node := o.of(address)
		return node != pod.Spec.NodeName
	})
}

// OwnersOf are those by what was decided.
func OwnersOf(decided map[string]*NodeAddresses) *PodOwners {
	owners := &PodOwners{}
	for name, addresses := range decided {
		owners.addTold(name, addresses.PodRanges)
	}
	return owners
}

func (o *PodOwners) addTold(node string, ranges []string) {
	for _, prefix := range parsePrefixes(ranges) {
		o.add(prefix, node)
	}
}

// mix notes whose something is: "" where it is of several.
func mix[K comparable](owners map[K]string, key K, owner string) {
	if before, is := owners[key]; is && before != owner {
		owner = ""
	}
	owners[key] = owner
}

// podFinder finds the ranges of the nodes' pods.
type podFinder struct {
	nodes map[string][]netip.Prefix // the podCIDRs of each
	// pods are ranges in which all addresses are pods': of others it is not known whose those
	// are that no pod has.
	pods PodOwners
	// known are whose the addresses are, blocks whose all that are known of a block.
	known  map[netip.Addr]string
	blocks map[netip.Prefix]string
}

// podRanges are the ranges of the nodes' pods by the nodes' names, for packets that cross
// routers: the Nodes' podCIDRs, and what pods have beside them, as by Calico's IPAM. A pod's
// address alone proves nothing, as its own node tells it: it counts where all are pods'.
func podRanges(in *Claims) map[string]nodeRanges {
	if !AnyRouted(in.Paths) {
		return nil
	}
	f := &podFinder{nodes: map[string][]netip.Prefix{}, known: map[netip.Addr]string{}, blocks: map[netip.Prefix]string{}}
	for _, prefix := range in.PodRanges {
		f.pods.add(prefix, "")
	}
	for i := range in.Nodes {
		f.addNode(&in.Nodes[i])
	}
	for i := range in.Pods {
		pod := &in.Pods[i]
		for _, address := range ownAddresses(pod) {
			f.note(address, pod.Spec.NodeName)
		}
	}
	return f.find(in.Nodes)
}

func (f *podFinder) addNode(node *corev1.Node) {
	f.nodes[node.Name] = parsePrefixes(node.Spec.PodCIDRs)
	for _, prefix := range f.nodes[node.Name] {
		f.pods.add(prefix, node.Name)
		if block := blockOf(prefix.Addr()); prefix.Bits() >= block.Bits() {
			f.blocks[block] = "" // the podCIDR says more than the block would
		}
	}
	for _, entry := range node.Status.Addresses {
		if address, ok := parseAddress(entry.Address); ok {
			f.note(address, "")
		}
	}
}

func (f *podFinder) note(address netip.Addr, node string) {
	mix(f.known, address, node)
	mix(f.blocks, blockOf(address), node)
}

func blockOf(address netip.Addr) netip.Prefix {
	bits := ipv6Block
	if address.Is4() {
		bits = ipv4Block
	}
	return netip.PrefixFrom(address, bits).Masked()
}

// find tells each node's podCIDRs first, then ranges of what is beside them, as many as there is
// room for.
func (f *podFinder) find(nodes []corev1.Node) map[string]nodeRanges {
	beside, told := f.beside(), map[string][]string{}
	var lost []netip.Addr
	for i := range nodes {
		name, cidrs := nodes[i].Name, nodes[i].Spec.PodCIDRs
		if len(cidrs) > maxPodRanges {
			cidrs = nil
		}
		told[name] = slices.Clone(cidrs)
		for _, prefix := range slices.SortedFunc(maps.Keys(beside[name]), comparePrefixes) {
			if len(told[name]) < maxPodRanges {
				told[name] = append(told[name], prefix.String())
			} else {
				lost = append(lost, beside[name][prefix]...)
			}
		}
	}
	f.drop(told, lost)
	return f.count(told)
}

// beside are the ranges of pods that have addresses beside their Nodes' podCIDRs, with these
// addresses, by the node: a block where no other node has anything in it, or the address alone.
func (f *podFinder) beside() map[string]map[netip.Prefix][]netip.Addr {
	found := map[string]map[netip.Prefix][]netip.Addr{}
	for address, name := range f.known {
		cidrs, exists := f.nodes[name]
		all, _ := f.pods.of(address)
		if !exists || !all.IsValid() || containsAddress(cidrs, address) {
			continue
		}
		prefix := blockOf(address)
		if f.blocks[prefix] != name || all.Bits() > prefix.Bits() {
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		if found[name] == nil {
			found[name] = map[netip.Prefix][]netip.Addr{}
		}
		found[name][prefix] = append(found[name][prefix], address)
	}
	return found
}

// drop takes podCIDRs away in which addresses of others are that have no range of their own:
// packets for these would go to the wrong node.
func (f *podFinder) drop(told map[string][]string, lost []netip.Addr) {
	dropped := map[netip.Prefix]bool{}
	for _, address := range lost {
		for _, length := range f.pods.lengths {
			if prefix, err := address.Prefix(length); err == nil {
				dropped[prefix] = true
			}
		}
	}
	for name := range told {
		told[name] = slices.DeleteFunc(told[name], func(text string) bool {
			prefix, err := netip.ParsePrefix(text)
			return err == nil && dropped[prefix.Masked()]
		})
	}
}

// count says how many addresses are not where their node's pods are told to be.
func (f *podFinder) count(told map[string][]string) map[string]nodeRanges {
	owners, found := &PodOwners{}, map[string]nodeRanges{}
	for name, ranges := range told {
		owners.addTold(name, ranges)
		found[name] = nodeRanges{told: ranges}
	}
	for address, name := range f.known {
		ranges, exists := found[name]
		if _, owner := owners.of(address); exists && owner != name {
			ranges.leftOut++
			found[name] = ranges
		}
	}
	return found
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
}

func parsePrefixes(texts []string) (prefixes []netip.Prefix) {
	for _, text := range texts {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			prefixes = append(prefixes, prefix.Masked())
		}
	}
	return prefixes
}

func containsAddress(ranges []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(within netip.Prefix) bool { return within.Contains(address) })
}

// ownAddresses are a pod's own.
func ownAddresses(pod *corev1.Pod) (addresses []netip.Addr) {
	if pod.Spec.HostNetwork {
		return nil
	}
	for _, ip := range pod.Status.PodIPs {
		if address, ok := parseAddress(ip.IP); ok {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// AnyRouted is true where packets cross routers on a path.
func AnyRouted(paths []v1alpha1.MPTCPPath) bool {
	return slices.ContainsFunc(paths, func(path v1alpha1.MPTCPPath) bool { return path.Spec.Underlay == v1alpha1.UnderlayRouted })
}

// IsOutsideItsNode tells of a pod that it has an address that is in none of its Node's podCIDRs.
func IsOutsideItsNode(pod *corev1.Pod, node *corev1.Node) bool {
	ranges := parsePrefixes(node.Spec.PodCIDRs)
	return slices.ContainsFunc(ownAddresses(pod), func(address netip.Addr) bool { return !containsAddress(ranges, address) })
}
