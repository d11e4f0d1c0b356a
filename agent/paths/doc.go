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
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// Node is a node's network as rtnetlink shows it. It is safe for concurrent use.
type Node struct {
	namespace netns.NsHandle // netns.None() for the process's own
	kernel    *rtnetlink

	mu   sync.Mutex
	seen familiesSeen
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
	return &Node{namespace: own, kernel: kernel, seen: familiesSeen{}}, nil
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

// Peer is another node, as it describes itself in its MPTCPNode.
type Peer struct {
	// Name of the node.
	Name string
	// Addresses are those by which a route may name the node as next hop.
	Addresses []netip.Addr
	// Paths say how to reach the node, by the name of the path.
	Paths map[string]PeerPath
}

// PeerPath is another node's NIC on one path.
type PeerPath struct {
	// Addresses to which packets on this path are sent, the preferred one first.
	Addresses []netip.Addr
	// Up is false while the other node says that its NIC is down.
	Up bool
}

// PeerOf reads what another node says of itself. The error names addresses that
// cannot be read; the peer is whole but for them.
func PeerOf(node *v1alpha1.MPTCPNode) (Peer, error) {
	addresses, err := parseAddresses(node.Status.Addresses)
	peer := Peer{Name: node.Name, Addresses: addresses, Paths: map[string]PeerPath{}}
	for _, path := range node.Status.Paths {
		addresses, failed := parseAddresses(path.Addresses)
		err = errors.Join(err, failed)
		peer.Paths[string(path.Name)] = PeerPath{Addresses: addresses, Up: path.State == v1alpha1.LinkUp}
	}
	if err != nil {
		return peer, fmt.Errorf("reading addresses of node %s: %w", node.Name, err)
	}
	return peer, nil
}

func parseAddresses(texts []string) (addresses []netip.Addr, failed error) {
	for _, text := range texts {
		address, err := netip.ParseAddr(text)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		addresses = append(addresses, address.Unmap())
	}
	return addresses, failed
}

// known are all addresses of the peer.
func (p Peer) known() []netip.Addr {
	known := append([]netip.Addr(nil), p.Addresses...)
	for _, path := range p.Paths {
		known = append(known, path.Addresses...)
	}
	return known
}
