// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/netip"
	"slices"

	"braid.dev/braid/agent/paths"
)

// owners says which peer has an address, by the peer's name.
type owners map[netip.Addr]string

// ownership is who may have an address in this round.
type ownership struct {
	peer  string // empty for nobody
	proof int
}

// settle leaves every address to one peer at most, and none to a peer that is this
// node's own, or the way out of the cluster unless it is in the peer's Node. Of peers
// that claim one address the one with the better proof has it, else the one that had
// it in the last round, else none.
func (o *owners) settle(from Sources) []paths.Peer {
	refused := refusedAddresses(&from.Resolution)
	claims := make(map[netip.Addr]ownership, len(*o))
	for i := range from.Peers {
		peer := &from.Peers[i]
		for _, address := range peer.All() {
			proof := proofOf(peer, address)
			if needed, is := refused[address]; !is || proof >= needed {
				claims[address] = o.better(claims[address], ownership{peer.Name, proof}, address)
			}
		}
	}
	*o = make(owners, len(claims))
	for address, claim := range claims {
		if claim.peer != "" {
			(*o)[address] = claim.peer
		}
	}
	settled := make([]paths.Peer, 0, len(from.Peers))
	for _, peer := range from.Peers {
		settled = append(settled, o.without(peer))
	}
	return settled
}

// Proofs of ownership, and noProof for what nothing proves enough.
const (
	saidByAgent = iota + 1
	confirmed
	hasTheNode
	noProof
)

func proofOf(peer *paths.Peer, address netip.Addr) int {
	switch {
	case slices.Contains(peer.OfNode, address):
		return hasTheNode
	case peer.Confirmed:
		return confirmed
	}
	return saidByAgent
}

// refusedAddresses are those that are no peer's without the proof that is given.
func refusedAddresses(here *paths.Resolution) map[netip.Addr]int {
	refused := map[netip.Addr]int{}
	for _, address := range here.WaysOut {
		refused[address] = hasTheNode
	}
	own := slices.Clone(here.Uplinks)
	for _, path := range here.Paths {
		own = append(own, path.NIC)
	}
	for _, nic := range own {
		for _, prefix := range nic.Addresses {
			refused[prefix.Addr()] = noProof
		}
	}
	return refused
}

// better is the one of two claims to an address that holds.
func (o *owners) better(a, b ownership, address netip.Addr) ownership {
	switch {
	case a.proof > b.proof:
		return a
	case a.proof < b.proof, a.peer == b.peer:
		return b
	case (*o)[address] == a.peer:
		return a
	case (*o)[address] == b.peer:
		return b
	}
	return ownership{proof: a.proof}
}

// without leaves out of a peer what is not its own.
func (o *owners) without(peer paths.Peer) paths.Peer {
	isOthers := func(address netip.Addr) bool { return (*o)[address] != peer.Name }
	if !slices.ContainsFunc(peer.All(), isOthers) {
		return peer
	}
	less := paths.Peer{Name: peer.Name, OfNode: peer.OfNode, Confirmed: peer.Confirmed, PodRanges: peer.PodRanges, Key: peer.Key, Paths: map[string]paths.PeerPath{}}
	less.Addresses = slices.DeleteFunc(slices.Clone(peer.Addresses), isOthers)
	for name, path := range peer.Paths {
		less.Paths[name] = paths.PeerPath{Addresses: slices.DeleteFunc(slices.Clone(path.Addresses), isOthers), Up: path.Up, Routers: path.Routers}
	}
	return less
}
