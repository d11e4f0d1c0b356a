// SPDX-License-Identifier: Apache-2.0

package guestagent

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// turn is a guest that is to be asked.
type turn struct {
	who target
	// since is when its turn came; those that were never asked come first.
	since time.Time
	// silent: it did not answer at its last turn.
	silent bool
	// take asks it, and returns whether there is something else to say.
	take func(context.Context) bool
}

func (t *turn) namespace() string {
	namespace, _, _ := strings.Cut(t.who.Name, "/")
	return namespace
}

// begin has guests asked whose turn it is, as far as there is room, and returns of how many that
// was begun. What becomes of one is known without the others.
func (p *Part) begin(ctx context.Context) (begun int) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	turns := p.due()
	slices.SortFunc(turns, func(a, b turn) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.who.UID, b.who.UID))
	})
	for _, t := range turns {
		if !p.hasRoom(&t) {
			continue
		}
		p.busy[t.who.UID] = &t
		begun++
		p.asking.Go(func() { p.take(ctx, t) })
	}
	return begun
}

// hasRoom says whether another guest may be asked now.
func (p *Part) hasRoom(t *turn) bool {
	if p.busy[t.who.UID] != nil || len(p.busy) >= atOnce {
		return false
	}
	neighbours, silent := 0, 0
	for _, other := range p.busy {
		if other.namespace() == t.namespace() {
			neighbours++
		}
		if other.silent {
			silent++
		}
	}
	return neighbours < ofOneNamespace && (!t.silent || silent < ofTheSilent)
}

// take has a guest asked, and the next one begun.
func (p *Part) take(ctx context.Context, t turn) {
	changed := t.take(ctx)
	p.mutex.Lock()
	delete(p.busy, t.who.UID)
	p.mutex.Unlock()
	p.wake()
	if changed && p.options.Notify != nil {
		p.options.Notify()
	}
}

// due are the guests whose turn it is. None is put back before the plan is known.
func (p *Part) due() (turns []turn) {
	if !p.applied {
		return nil
	}
	p.readRecords()
	stays := map[types.UID]bool{}
	for _, r := range p.records {
		stays[r.UID] = true
		if _, wanted := p.targets[r.UID]; !wanted && p.isDue(r.UID, r.place) {
			turns = append(turns, turn{r.target, p.since(r.UID), p.isSilent(r.UID), func(ctx context.Context) bool { p.noteBack(r, p.restore(ctx, r)); return false }})
		}
	}
	for uid, who := range p.targets {
		stays[uid] = true
		if p.isDue(uid, who.place) {
			turns = append(turns, turn{who, p.since(uid), p.isSilent(uid), func(ctx context.Context) bool { return p.note(who, p.raise(ctx, who)) }})
		}
	}
	for uid := range p.guests {
		if !stays[uid] {
			delete(p.guests, uid)
		}
	}
	return turns
}

// readRecords reads, once, what earlier agents wrote.
func (p *Part) readRecords() {
	if p.records != nil {
		return
	}
	p.records = map[types.UID]*record{}
	all, err := p.recorded()
	if err != nil {
		p.options.Log.Error(err, "failed to read what limits of guests were")
	}
	for _, r := range all {
		p.records[r.UID] = r
	}
}

func (p *Part) since(uid types.UID) time.Time {
	if known := p.guests[uid]; known != nil {
		return known.next
	}
	return time.Time{}
}

func (p *Part) isSilent(uid types.UID) bool {
	known := p.guests[uid]
	return known != nil && (known.logged != "" || known.status != nil && known.status.State == v1alpha1.GuestAgentUnreachable)
}

// isDue is also true of a guest whose socket is another one, or that is wanted otherwise than
// at its last turn.
func (p *Part) isDue(uid types.UID, at place) bool {
	known := p.guests[uid]
	_, wanted := p.targets[uid]
	if known == nil || known.at != at || wanted != (known.status != nil) {
		return true
	}
	return !p.now().Before(known.next)
}

// knows: the guest was asked before, by this agent.
func (p *Part) knows(who target) bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	known := p.guests[who.UID]
	return known != nil && known.status != nil && known.at == who.place && known.status.State == v1alpha1.GuestAgentLimitsSet
}
