// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// wish is an endpoint with its compiled chain.
type wish struct {
	*Endpoint
	compiled
}

type compiled struct {
	chain   *Chain
	content content
	err     error
}

// compileAll compiles each list of rules once, also where endpoints share it.
func compileAll(endpoints []Endpoint, surroundings Surroundings, failures Failures) (wishes []wish) {
	known := map[*v1alpha1.PlanRule]compiled{}
	for i := range endpoints {
		endpoint := &endpoints[i]
		result, done := known[&endpoint.Rules[0]]
		if !done {
			result = compileRules(endpoint.Rules, surroundings)
			known[&endpoint.Rules[0]] = result
		}
		if result.err != nil {
			failures.add(endpoint.UID, result.err)
			continue
		}
		wishes = append(wishes, wish{endpoint, result})
	}
	return wishes
}

func compileRules(rules []v1alpha1.PlanRule, surroundings Surroundings) (result compiled) {
	if result.chain, result.err = Compile(rules, surroundings); result.err != nil {
		return result
	}
	hash := sha256.New()
	hash.Write(unsafe.Slice((*byte)(unsafe.Pointer(result.chain)), unsafe.Sizeof(Chain{})))
	for i := range rules {
		if result.content.Rule[i], result.err = fingerprint(&rules[i]); result.err != nil {
			return result
		}
		hash.Write(binary.NativeEndian.AppendUint64(nil, result.content.Rule[i]))
	}
	hash.Sum(result.content.Digest[:0])
	return result
}

// fingerprint tells whether a rule is the same as before; it is never 0.
func fingerprint(rule *v1alpha1.PlanRule) (uint64, error) {
	text, err := json.Marshal(rule)
	if err != nil {
		return 0, fmt.Errorf("rule %q of %s: %w", rule.Name, rule.Policy, err)
	}
	hash := fnv.New64a()
	hash.Write(text)
	return max(hash.Sum64(), 1), nil
}

// change gives each endpoint its chain. What is new is complete before the one
// step that makes it count.
func (c *Chains) change(wishes []wish, failures Failures) error {
	var changed []wish
	fills := map[uint16]wish{}
	for _, w := range wishes {
		if c.book.has(w) {
			c.book.endpoints[w.UID].keep(w)
			continue
		}
		if err := c.book.reserve(w, fills); err != nil {
			failures.add(w.UID, err)
			continue
		}
		changed = append(changed, w)
	}
	if len(changed) == 0 {
		return nil
	}
	if err := c.fill(fills); err != nil {
		c.book.forgetContents(fills)
		return err
	}
	if err := c.newEpoch(); err != nil {
		return err
	}
	for _, w := range changed {
		failures.add(w.UID, c.swap(w))
	}
	return nil
}

// has is true for an endpoint that has its chain already, where it shall have it.
func (b *book) has(w wish) bool {
	a := b.endpoints[w.UID]
	return a != nil && a.word.Slot() != empty && a.index() == w.Interface && b.contents[a.word.Slot()].Digest == w.content.Digest
}

func (a *attached) keep(w wish) { a.name, a.rules, a.lifted = w.Name, w.Rules, time.Time{} }

// reserve finds a slot for a chain that has none yet.
func (b *book) reserve(w wish, fills map[uint16]wish) error {
	if _, has := b.slotOf[w.content.Digest]; has {
		return nil
	}
	slot, err := b.freeSlot()
	if err != nil {
		return err
	}
	b.contents[slot], b.slotOf[w.content.Digest], fills[slot] = w.content, slot, w
	return nil
}

func (b *book) forgetContents(fills map[uint16]wish) {
	for slot, w := range fills {
		delete(b.contents, slot)
		delete(b.slotOf, w.content.Digest)
		b.stale[slot] = true
	}
}

// newEpoch makes that records are looked at anew. It is noted before it is used,
// so that no word ever comes twice.
func (c *Chains) newEpoch() error {
	c.book.next.Epoch++
	return c.objects.writeNext(c.book.next)
}

// fill writes chains into slots that no packet uses, and empties those that are no
// longer used. All at once, because the kernel waits each time until no program
// can have the map that was there before.
func (c *Chains) fill(fills map[uint16]wish) error {
	if len(fills) == 0 {
		return nil
	}
	var slots, descriptors []uint32
	for slot, w := range fills {
		inner, err := c.objects.newChain(w.chain)
		if err != nil {
			return err
		}
		defer inner.Close() // the slot keeps it
		slots, descriptors = append(slots, uint32(slot)), append(descriptors, uint32(inner.FD()))
		delete(c.book.stale, slot)
	}
	for slot := range c.book.stale {
		slots, descriptors = append(slots, uint32(slot)), append(descriptors, uint32(c.objects.empty.FD()))
	}
	if _, err := c.objects.maps["chains"].BatchUpdate(slots, descriptors, nil); err != nil {
		return fmt.Errorf("writing %d chains: %w", len(fills), err)
	}
	clear(c.book.stale)
	for slot, w := range fills {
		if err := c.objects.maps["chain_contents"].Put(uint32(slot), w.content); err != nil {
			return fmt.Errorf("noting what a chain holds: %w", err)
		}
	}
	return nil
}

func (o *objects) newChain(chain *Chain) (*ebpf.Map, error) {
	inner, err := ebpf.NewMap(o.inner)
	if err != nil {
		return nil, fmt.Errorf("making the map of a chain: %w", err)
	}
	if err := inner.Put(uint32(0), chain); err != nil {
		return nil, errors.Join(fmt.Errorf("writing a chain: %w", err), inner.Close())
	}
	return inner, nil
}

// prepareEmpty puts the chain without rules into its slot.
func (o *objects) prepareEmpty() (err error) {
	if o.empty, err = o.newChain(&Chain{}); err != nil {
		return err
	}
	return o.grace()
}

// grace returns after all programs that ran when it was called have ended: the
// kernel waits for them after each change of a map of maps.
func (o *objects) grace() error {
	if err := o.maps["chains"].Put(uint32(empty), o.empty); err != nil {
		return fmt.Errorf("writing the chain without rules: %w", err)
	}
	return nil
}

// swap makes an endpoint use its new chain, from one packet to the next.
func (c *Chains) swap(w wish) error {
	row, err := c.book.freeRow()
	if err != nil {
		return err
	}
	a, err := c.place(w)
	if err != nil {
		return err
	}
	now, err := c.objects.counters.at(int(row))
	if err != nil {
		return err
	}
	old := retired{word: a.word, row: row}
	if a.word.Slot() != empty {
		before, err := c.objects.counters.at(int(a.word.Row()))
		if err != nil {
			return err
		}
		old.rules, old.copied = sameRules(c.book.contents[a.word.Slot()], w.content), before.read()
	}
	now.write(old.carried())
	if err := c.point(a, endpoint.MakeWord(c.book.slotOf[w.content.Digest], row, c.book.next.Epoch)); err != nil {
		return err
	}
	a.keep(w)
	c.book.retire(old)
	return nil
}

// place is the endpoint's entry, with its interface as it is now. The entry is
// written before the interface is, so that the next agent finds both.
func (c *Chains) place(w wish) (*attached, error) {
	if err := c.makeRoom(w); err != nil {
		return nil, err
	}
	a := c.book.endpoints[w.UID]
	if a == nil {
		c.book.next.Endpoint++
		if err := c.objects.writeNext(c.book.next); err != nil {
			return nil, err
		}
		a = &attached{record: endpointRecord{Number: c.book.next.Endpoint}}
	}
	if a.index() == w.Interface {
		return a, nil
	}
	if before := a.index(); before != 0 {
		if err := c.objects.attachments.remove(before); err != nil {
			return nil, err
		}
	}
	a.record.Interface = uint32(w.Interface)
	if err := c.objects.writeRecord(w.UID, a.record); err != nil {
		return nil, err
	}
	c.book.endpoints[w.UID] = a
	return a, nil
}

// makeRoom forgets an earlier endpoint that had the interface.
func (c *Chains) makeRoom(w wish) error {
	for uid, a := range c.book.endpoints {
		if uid != w.UID && a.index() == w.Interface {
			return c.forget(map[types.UID]*attached{uid: a})
		}
	}
	return nil
}

// point changes an endpoint's word.
func (c *Chains) point(a *attached, to word) error {
	err := c.objects.attachments.put(Attachment{Interface: a.record.Interface, Endpoint: a.record.Number, Chain: uint64(to)})
	if err != nil {
		return err
	}
	a.word = to
	c.book.rows[to.Row()] = true
	return nil
}

// retired is what an endpoint had before, which packets may use for a moment
// longer.
type retired struct {
	word   word
	row    uint16 // the row that goes on, empty for none
	copied row    // of the old row, to the new one
	rules  map[int]int
}

// sameRules are the places of rules before and after.
func sameRules(before, after content) map[int]int {
	places := map[int]int{}
	for now, fingerprint := range after.Rule {
		if then := slices.Index(before.Rule[:], fingerprint); fingerprint != 0 && then >= 0 {
			places[then] = now
		}
	}
	return places
}

// carried is what the new row begins with.
func (r *retired) carried() (carried row) {
	for then, now := range r.rules {
		carried[now] = r.copied[then]
	}
	return carried
}

func (b *book) retire(old retired) {
	if old.word != 0 && old.word.Row() != empty {
		b.retired = append(b.retired, old)
	}
}

// lift gives endpoints that are no longer wanted the chain without rules: with it
// the programs undo what rules did to subflows. It returns all that have it.
func (c *Chains) lift(wanted []Endpoint) (map[types.UID]*attached, error) {
	keep := map[types.UID]bool{}
	for i := range wanted {
		keep[wanted[i].UID] = true
	}
	lifted, isNew := map[types.UID]*attached{}, true
	for uid, a := range c.book.endpoints {
		if keep[uid] {
			continue
		}
		lifted[uid] = a
		if !a.lifted.IsZero() {
			continue
		}
		if isNew {
			isNew = false
			if err := c.newEpoch(); err != nil {
				return nil, err
			}
		}
		old := retired{word: a.word}
		if err := c.point(a, endpoint.MakeWord(empty, empty, c.book.next.Epoch)); err != nil {
			return nil, err
		}
		a.rules, a.lifted = nil, time.Now()
		c.book.retire(old)
	}
	return lifted, nil
}

// collect frees the slots and rows that no packet can use any more, after it added
// to the new rows what was counted in the old ones since they were copied.
func (c *Chains) collect() error {
	used := c.book.usedSlots()
	var unused []uint16
	for slot := range c.book.contents {
		if !used[slot] {
			unused = append(unused, slot)
		}
	}
	if len(unused) == 0 && len(c.book.retired) == 0 {
		return nil
	}
	if err := c.objects.grace(); err != nil {
		return err
	}
	for len(c.book.retired) > 0 {
		if err := c.settle(c.book.retired[0]); err != nil {
			return err
		}
		c.book.retired = c.book.retired[1:]
	}
	c.book.retired = nil
	for _, slot := range unused {
		if err := c.objects.maps["chain_contents"].Delete(uint32(slot)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("freeing a chain: %w", err)
		}
		delete(c.book.slotOf, c.book.contents[slot].Digest)
		delete(c.book.contents, slot)
		c.book.stale[slot] = true
	}
	return nil
}

func (c *Chains) settle(old retired) error {
	from, err := c.objects.counters.at(int(old.word.Row()))
	if err != nil {
		return err
	}
	to, err := c.objects.counters.at(int(old.row))
	if err != nil {
		return err
	}
	last := from.read()
	for then, now := range old.rules {
		to.add(now, last[then].minus(old.copied[then]))
	}
	delete(c.book.rows, old.word.Row())
	return nil
}

// patience is how long subflows have, after the last rule is gone, until one of
// their packets lets its effects be undone.
const patience = 10 * time.Minute

// drop takes the programs off endpoints whose rules are gone and undone.
func (c *Chains) drop(lifted map[types.UID]*attached) error {
	if len(lifted) == 0 {
		return nil
	}
	engaged, err := c.objects.engaged()
	if err != nil {
		return err
	}
	gone := map[types.UID]*attached{}
	for uid, a := range lifted {
		if engaged[a.record.Number] && time.Since(a.lifted) < patience && exists(a.index()) {
			continue
		}
		err = errors.Join(err, c.interfaces.Detach(a.index()))
		gone[uid] = a
	}
	return errors.Join(err, c.forget(gone))
}

func exists(index int) bool {
	_, err := netlink.LinkByIndex(index)
	return !errors.As(err, &netlink.LinkNotFoundError{})
}

// forget removes what is known of endpoints.
func (c *Chains) forget(endpoints map[types.UID]*attached) error {
	if len(endpoints) == 0 {
		return nil
	}
	numbers := map[uint32]bool{}
	for uid, a := range endpoints {
		if err := errors.Join(c.objects.attachments.remove(a.index()), c.objects.deleteRecord(uid)); err != nil {
			return err
		}
		numbers[a.record.Number] = true
		c.book.retire(retired{word: a.word})
		delete(c.book.endpoints, uid)
	}
	return c.objects.forgetRecords(numbers)
}
