// SPDX-License-Identifier: Apache-2.0

// Package paths is everything about the node's NICs: which of them form the
// paths of a plan (Node.Resolve), when something about them changes
// (Node.Watch), and detours for the cluster network's own routes while the NIC
// that they point to cannot deliver (Detours).
package paths

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// Node is a node's network as rtnetlink shows it. It is safe for concurrent use.
type Node struct {
	namespace netns.NsHandle // netns.None() for the process's own
	kernel    *rtnetlink
	routers   routers
	outside   routers // out of the cluster
	gateways  gateways

	mu     sync.Mutex
	seen   familiesSeen
	steady steadiness
}

// Open opens the network namespace of a node. netns.None() means the calling
// process's own, and needs CAP_NET_ADMIN only; another one needs CAP_SYS_ADMIN
// too. The handle stays the caller's.
func Open(namespace netns.NsHandle) (*Node, error) {
	own, err := duplicate(namespace)
	if err != nil {
		return nil, err
	}
	kernel, err := openKernel(own)
	if err != nil {
		return nil, errors.Join(err, closeNamespace(own))
	}
	return &Node{namespace: own, kernel: kernel, routers: routers{ask: kernel.RouterTo}, outside: routers{ask: kernel.gatewayTo}, seen: familiesSeen{}, steady: steadiness{}}, nil
}

// Close frees what Open took. Channels of Watch close when their context ends.
func (n *Node) Close() error {
	n.kernel.close()
	return closeNamespace(n.namespace)
}

func duplicate(namespace netns.NsHandle) (netns.NsHandle, error) {
	if !namespace.IsOpen() {
		return netns.None(), nil
	}
	fd, err := unix.FcntlInt(uintptr(namespace), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return netns.None(), fmt.Errorf("keeping the network namespace open: %w", err)
	}
	return netns.NsHandle(fd), nil
}

func closeNamespace(namespace netns.NsHandle) error {
	if !namespace.IsOpen() {
		return nil
	}
	return namespace.Close()
}

// Peer is another node.
type Peer struct {
	// Name of the node.
	Name string
	// Addresses are those by which a route may name the node as next hop.
	Addresses []netip.Addr
	// OfNode are those of Addresses that the Node itself has in its status: they are
	// the node's, whatever else speaks against it. In the order in which its agent has them.
	OfNode []netip.Addr
	// Paths say how to reach the node, by the name of the path.
	Paths map[string]PeerPath
	// Confirmed: a controller has confirmed the addresses, and the node has no others.
	// Otherwise they are what its agent says.
	Confirmed bool
	// PodRanges are the addresses of its pods.
	PodRanges []netip.Prefix
	// Key is what it decapsulates by what Braid encapsulates; 0 where it does not.
	Key uint64
}

// Decapsulates tells whether natively routed packets can go there over routers, from a node
// whose pods have addresses of these ranges.
func (p *Peer) Decapsulates(own []netip.Prefix) bool {
	return p.Key != 0 && len(p.PodRanges) > 0 && len(own) > 0
}

// PeerPath is another node's NIC on one path.
type PeerPath struct {
	// Addresses to which packets on this path are sent, the preferred one first.
	Addresses []netip.Addr
	// Up is false while the other node says that its NIC is down.
	Up bool
	// Routers are the next hops to those of Addresses that are not on the NIC's own link;
	// see Node.Lead.
	Routers map[netip.Addr]netip.Addr
	// Unled tells why other addresses of the peer are left out; empty where none is.
	Unled string
}

// NextHop is to whom the link's packets for one of the addresses go.
func (p PeerPath) NextHop(address netip.Addr) netip.Addr {
	if router, beyond := p.Routers[address]; beyond {
		return router
	}
	return address
}

// PeerOf reads what a controller has confirmed of a node's MPTCPNode; nothing where
// none has judged it. The states of paths, and the order of addresses, are what the
// node's agent says. On a path that is down the peer has all addresses that are
// confirmed there, because the NIC may have lost them.
func PeerOf(node *v1alpha1.MPTCPNode) Peer {
	peer := Peer{Name: node.Name, Paths: map[string]PeerPath{}, Confirmed: true, PodRanges: PodRangesOf(node)}
	// What is no key stays 0.
	peer.Key, _ = strconv.ParseUint(node.Status.EncapsulationKey, 16, 64)
	onPath := map[v1alpha1.PathName][]netip.Addr{}
	if node.Spec != nil {
		for _, confirmed := range node.Spec.Confirmed {
			address, ok := parseAddress(confirmed.Address)
			if !ok {
				continue
			}
			peer.Addresses = append(peer.Addresses, address)
			onPath[confirmed.Path] = append(onPath[confirmed.Path], address)
			if confirmed.Proof == v1alpha1.AddressProofNode {
				peer.OfNode = append(peer.OfNode, address)
			}
		}
	}
	sortAsReported(peer.OfNode, node.Status.Addresses)
	for i := range node.Status.Paths {
		path := &node.Status.Paths[i]
		there := PeerPath{Addresses: onPath[path.Name], Up: path.State == v1alpha1.LinkUp}
		if there.Up {
			there.Addresses = slices.DeleteFunc(parseAddresses(path.Addresses), func(reported netip.Addr) bool {
				return !slices.Contains(onPath[path.Name], reported)
			})
		}
		peer.Paths[string(path.Name)] = there
	}
	return peer
}

// OwnPods are what is known of where this node's pods are.
type OwnPods struct {
	Ranges []netip.Prefix
	// LeftOut are how many addresses of them are in none of Ranges.
	LeftOut int32
}

// OwnPodsOf reads them from this node's MPTCPNode.
func OwnPodsOf(node *v1alpha1.MPTCPNode) OwnPods {
	pods := OwnPods{Ranges: PodRangesOf(node)}
	if node.Spec != nil {
		pods.LeftOut = node.Spec.PodsLeftOut
	}
	return pods
}

// PodRangesOf are the ranges of a node's pods, as the controller has found them.
func PodRangesOf(node *v1alpha1.MPTCPNode) (ranges []netip.Prefix) {
	if node.Spec == nil {
		return nil
	}
	for _, text := range node.Spec.PodRanges {
		if prefix, err := netip.ParsePrefix(text); err == nil && prefix == prefix.Masked() {
			ranges = append(ranges, prefix)
		}
	}
	return ranges
}

// sortAsReported has the addresses in the order of the node's agent, which is that of its
// Node: other nodes and it itself so take the same one for the first.
func sortAsReported(addresses []netip.Addr, reported []string) {
	order := map[netip.Addr]int{}
	for i, address := range parseAddresses(reported) {
		order[address] = i - len(reported)
	}
	slices.SortStableFunc(addresses, func(a, b netip.Addr) int { return order[a] - order[b] })
}

// UnconfirmedPeerOf is the node as its agent describes it, for clusters whose
// controller confirms nothing yet.
func UnconfirmedPeerOf(node *v1alpha1.MPTCPNode) Peer {
	peer := Peer{Name: node.Name, Addresses: parseAddresses(node.Status.Addresses), Paths: map[string]PeerPath{}}
	for _, path := range node.Status.Paths {
		peer.Paths[string(path.Name)] = PeerPath{Addresses: parseAddresses(path.Addresses), Up: path.State == v1alpha1.LinkUp}
	}
	return peer
}

// parseAddresses leaves out what is no address. The controller tells of it.
func parseAddresses(texts []string) (addresses []netip.Addr) {
	for _, text := range texts {
		if address, ok := parseAddress(text); ok {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// maxAddressText is longer than no address: IPv6 with an IPv4 address at its end.
const maxAddressText = 45

func parseAddress(text string) (netip.Addr, bool) {
	if len(text) > maxAddressText {
		return netip.Addr{}, false
	}
	address, err := netip.ParseAddr(text)
	return address.Unmap(), err == nil && address.Zone() == ""
}

// All are the addresses of the peer, on paths and elsewhere; some are there twice.
func (p Peer) All() []netip.Addr {
	all := slices.Clone(p.Addresses)
	for _, path := range p.Paths {
		all = append(all, path.Addresses...)
	}
	return all
}
