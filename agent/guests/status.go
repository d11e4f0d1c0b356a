// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"context"
	"fmt"
	"maps"
	"time"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/guest"
)

// look is how often the agent looks whether a guest follows.
const look = 5 * time.Second

// Run looks from time to time what guests make of announcements, and notifies of changes.
func (p *Part) Run(ctx context.Context) error {
	return node.Every(ctx, look, func() {
		if p.hasChanged() && p.options.Notify != nil {
			p.options.Notify()
		}
	})
}

func (p *Part) hasChanged() bool {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.loaded.Is() {
		return false
	}
	now := map[uint32]v1alpha1.GuestSubflows{}
	for index := range p.told {
		now[index] = p.stateOf(index)
	}
	return !maps.Equal(now, p.told)
}

// describe says of each guest what it makes of announcements. Of several interfaces that
// may be a guest's the one that carries its connections tells.
func (p *Part) describe(wants map[uint32]want, report *node.Report) {
	clear(p.told)
	for index, one := range wants {
		is := p.stateOf(index)
		p.told[index] = is
		if is == "" {
			continue
		}
		report.Describe(one.owner, func(status *v1alpha1.EndpointStatus) {
			status.GuestSubflows = is
			if is == v1alpha1.GuestNotTaken {
				node.AddMessage(status, v1alpha1.ReasonGuestTakesNoAnnouncements+": "+v1alpha1.GuestRemedy)
			}
		})
	}
}

// stateOf is empty where nothing is known.
func (p *Part) stateOf(index uint32) v1alpha1.GuestSubflows {
	counts, err := p.countsOf(index)
	switch {
	case err != nil:
		return ""
	case counts.Unheard > 0:
		return v1alpha1.GuestNotTaken
	case counts.Joins > 0:
		return v1alpha1.GuestJoined
	}
	return ""
}

func (p *Part) countsOf(index uint32) (counts guest.FromGuestGuestCounts, err error) {
	if err := p.loaded.Value.from.GuestCounts.Lookup(index, &counts); err != nil {
		return counts, fmt.Errorf("reading what guests were announced: %w", err)
	}
	return counts, nil
}
