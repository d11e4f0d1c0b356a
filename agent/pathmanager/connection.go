// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/mptcpnl"
)

// connection is one that the pod began.
type connection struct {
	token         uint32
	local, remote netip.AddrPort // of the first subflow
	// backend is where the node translates remote to, and remote itself where it
	// leaves it; invalid while that is not known.
	backend netip.AddrPort
	// announced are the peer's addresses, sorted by their ids.
	announced []announcedAddress
	// refused are pairs that the kernel has no subflows for.
	refused map[pair]bool
	// deniesFirst is true where the peer accepts no further subflow to remote.
	deniesFirst bool
	// joinsFirst is true once a further subflow to remote was established.
	joinsFirst bool
	subflows   subflows
	byKernel   bool // the kernel's path manager is in charge
	// complete is true where nothing is to be opened any more.
	complete bool
	asked    bool // the kernel, whether it began with data in its SYN

	delayed delayed

	attempts  int // to open what is missing, since it was complete for long
	attempted time.Time
	due       time.Time // when to look next
	place     int       // in the tracker's queue; -1 for none
	look      uint32    // the latest that found it
}

// announcedAddress is one of a peer's, with the id that it gave it.
type announcedAddress struct {
	id uint8
	at netip.AddrPort
}

// announce notes an address of the peer, in the place of what had its id. A peer may
// announce more than anybody uses: these are left out.
func (c *connection) announce(id uint8, at netip.AddrPort) {
	index, known := c.findAnnounced(id)
	if known {
		c.announced[index].at = at
	} else if len(c.announced) < mostAnnounced {
		c.announced = slices.Insert(c.announced, index, announcedAddress{id, at})
	}
}

// withdraw forgets the address of the peer that has an id.
func (c *connection) withdraw(id uint8) {
	if index, known := c.findAnnounced(id); known {
		c.announced = slices.Delete(c.announced, index, index+1)
	}
}

func (c *connection) findAnnounced(id uint8) (index int, known bool) {
	return slices.BinarySearchFunc(c.announced, id, func(a announcedAddress, id uint8) int { return cmp.Compare(a.id, id) })
}

// ends are those of a subflow.
type ends struct{ local, remote netip.AddrPort }

// subflowRecord is what is known of a subflow.
type subflowRecord struct {
	ends
	state subflowState
	since time.Time // when it was established
}

// subflows of one connection: a few, of which thousands of connections each have
// some, so that a map for each would be dear.
type subflows []subflowRecord

// get is the record of a subflow, or an empty one.
func (s subflows) get(key ends) (record subflowRecord, known bool) {
	for i := range s {
		if s[i].ends == key {
			return s[i], true
		}
	}
	return subflowRecord{ends: key}, false
}

// set adds the record, or replaces the one of the same ends. Of more than can be wanted
// it keeps some, established ones rather than closed ones.
func (s *subflows) set(record subflowRecord) {
	for i := range *s {
		if (*s)[i].ends == record.ends {
			(*s)[i] = record
			return
		}
	}
	if len(*s) < mostSubflows {
		*s = append(*s, record)
		return
	}
	if at := slices.IndexFunc(*s, func(old subflowRecord) bool { return old.state == subflowClosed }); at >= 0 && record.state == subflowEstablished {
		(*s)[at] = record
	}
}

func (s *subflows) remove(key ends) {
	*s = slices.DeleteFunc(*s, func(record subflowRecord) bool { return record.ends == key })
}

type subflowState uint8

const (
	subflowOpening subflowState = iota
	subflowEstablished
	subflowClosed // kept only where it is not to be opened again
)

// pair is what a subflow is opened between.
type pair struct {
	local    netip.Addr
	id       uint8 // of the local address
	remote   netip.AddrPort
	remoteID uint8
}

// peer is where further subflows of the connection go: to where the first one
// ends. Where a Service's address was translated on the way, a subflow to that
// address might end elsewhere, and is refused there. What the peer announces is
// its own address for sure: it serves where nobody knows of a translation and
// nothing came of the first attempt.
func (t *tracker) peer(c *connection) (at netip.AddrPort, id uint8, ok bool) {
	if c.backend.IsValid() && (!c.deniesFirst || c.backend != c.remote) {
		return c.backend, 0, true
	}
	if !c.deniesFirst && (t.settings.fullMesh() || c.triesFirst()) {
		return c.remote, 0, true
	}
	for _, announced := range c.announced {
		at := announced.at
		if at.Addr().Is4() == c.remote.Addr().Is4() && (c.deniesFirst || at.Addr() != c.remote.Addr()) {
			return c.withPort(at), announced.id, true
		}
	}
	return c.remote, 0, !c.deniesFirst
}

// triesFirst tells whether the next subflow is to be tried where the first one ends.
// Where one was established there before, that may have been luck with a Service
// that nobody knows of: later every other attempt goes to what the peer announces.
func (c *connection) triesFirst() bool {
	return c.attempts == 0 || c.joinsFirst && c.attempts%2 == 1
}

// withPort gives an address that was announced without a port the first one.
func (c *connection) withPort(at netip.AddrPort) netip.AddrPort {
	if at.Port() != 0 {
		return at
	}
	if c.backend.IsValid() {
		return netip.AddrPortFrom(at.Addr(), c.backend.Port())
	}
	return netip.AddrPortFrom(at.Addr(), c.remote.Port())
}

// pairs lists between what subflows are to be, the first one's pair first.
func (t *tracker) pairs(c *connection) []pair {
	peer, id, ok := t.peer(c)
	if !ok {
		return nil
	}
	first := pair{local: c.local.Addr(), remote: peer, remoteID: id}
	if !t.settings.fullMesh() {
		return []pair{first}
	}
	var pairs []pair
	for _, local := range t.locals(c) {
		for _, p := range c.towards(first) {
			p.local, p.id = local.Address, local.ID
			if p.local.Is4() == p.remote.Addr().Is4() && !c.refused[p] {
				pairs = append(pairs, p)
			}
		}
	}
	return pairs[:min(len(pairs), t.settings.Count)]
}

// locals are the pod's addresses, that of the first subflow first.
func (t *tracker) locals(c *connection) []mptcpnl.Endpoint {
	locals := []mptcpnl.Endpoint{{Address: c.local.Addr()}}
	for _, endpoint := range t.settings.own() {
		if endpoint.Address != c.local.Addr() {
			locals = append(locals, endpoint)
		}
	}
	return locals
}

// own are the pod's addresses with their ids.
func (s Settings) own() (own []mptcpnl.Endpoint) {
	for i, address := range s.Addresses {
		own = append(own, mptcpnl.Endpoint{ID: uint8(i + 1), Address: address.Unmap()})
	}
	return own
}

// towards lists the first pair with each address of the peer.
func (c *connection) towards(first pair) []pair {
	pairs := []pair{first}
	for _, announced := range c.announced {
		at := c.withPort(announced.at)
		if !slices.ContainsFunc(pairs, func(p pair) bool { return p.remote.Addr() == at.Addr() }) {
			pairs = append(pairs, pair{remote: at, remoteID: announced.id})
		}
	}
	return pairs
}

// missing is how many subflows a connection lacks, beyond those established and,
// if so wanted, those about to be.
func (t *tracker) missing(c *connection, withOpening bool) int {
	return len(t.lacking(c, withOpening))
}

// lacking lists a pair for each subflow that the connection lacks.
func (t *tracker) lacking(c *connection, withOpening bool) (lacking []pair) {
	if c.complete {
		return nil
	}
	if c.byKernel {
		return make([]pair, t.missingOfKernel(c, withOpening))
	}
	pairs := t.pairs(c)
	for _, p := range pairs {
		for range t.eachWanted(len(pairs)) - t.have(c, p, withOpening) {
			lacking = append(lacking, p)
		}
	}
	return lacking
}

// eachWanted is how many subflows each of some pairs is to have.
func (t *tracker) eachWanted(pairs int) int {
	if !t.settings.fullMesh() {
		return t.settings.Count
	}
	return max(1, min(t.settings.EachPair, t.settings.Count/pairs))
}

// missingOfKernel: the kernel counts further subflows only, so it opens none for
// a first one that closed.
func (t *tracker) missingOfKernel(c *connection, withOpening bool) int {
	have := 0
	for _, s := range c.subflows {
		if s.ends != (ends{c.local, c.remote}) && s.counts(withOpening) {
			have++
		}
	}
	return max(0, t.settings.extra()-have)
}

// have counts the subflows of a pair: by its addresses in a full mesh, else all.
func (t *tracker) have(c *connection, p pair, withOpening bool) (have int) {
	for _, s := range c.subflows {
		if s.counts(withOpening) && (!t.settings.fullMesh() || t.isOf(c, s.ends, p)) {
			have++
		}
	}
	return have
}

// isOf tells whether a subflow is between a pair of addresses.
func (t *tracker) isOf(c *connection, key ends, p pair) bool {
	if key.local.Addr() != p.local {
		return false
	}
	peer, _, _ := t.peer(c)
	return key.remote.Addr() == p.remote.Addr() || key.remote == c.remote && p.remote == peer
}

// established takes note of a subflow.
func (c *connection) established(key ends, now time.Time) {
	c.subflows.set(subflowRecord{key, subflowEstablished, now})
	c.joinsFirst = c.joinsFirst || key.remote == c.remote && key.local != c.local
}

func (s subflowRecord) counts(withOpening bool) bool { return s.state != subflowOpening || withOpening }

// refuse notes that no subflow can be between a pair.
func (t *tracker) refuse(c *connection, p pair) {
	if c.refused == nil || len(c.refused) >= mostRefused { // the peer can announce ever new ones
		c.refused = map[pair]bool{}
	}
	c.refused[p] = true
	t.refresh(c)
}

// mayNudge is false while the kernel would also open again what is to stay closed.
func (t *tracker) mayNudge(is4 bool) bool {
	if t.settings.Reopen != v1alpha1.ReopenNever {
		return true
	}
	for _, c := range t.connections {
		if c.remote.Addr().Is4() == is4 && (c.complete || c.lostSome()) {
			return false
		}
	}
	return true
}

// living tells whether a subflow of the connection is established.
func (c *connection) living() bool {
	for _, s := range c.subflows {
		if s.state == subflowEstablished {
			return true
		}
	}
	return false
}

// lostSome tells whether a subflow closed that is not to be opened again.
func (c *connection) lostSome() bool {
	for _, s := range c.subflows {
		if s.state == subflowClosed {
			return true
		}
	}
	return false
}
