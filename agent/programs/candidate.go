// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"braid.dev/braid/api/v1alpha1"
)

// candidate is a program as the plan wants it.
type candidate struct {
	*v1alpha1.PlanProgram
	key string
	// source is nil where it was not read again.
	source []byte
	// object is its content, but for the maps that it shares, whose layouts follow.
	object  string
	layouts map[string]*layout
	err     error
}

// seen is what a source had at a revision.
type seen struct {
	revision, object string
	layouts          map[string]*layout
}

// candidates are the programs of a plan. Those that share maps are read at once: how all
// of them declare these is compared before any is loaded.
func (m *Manager) candidates(ctx context.Context, planned []v1alpha1.PlanProgram) (all []*candidate) {
	ofPolicy := map[string]int{}
	for i := range planned {
		c := &candidate{PlanProgram: &planned[i], key: Key(planned[i].Policy, planned[i].Name)}
		if ofPolicy[c.Policy]++; ofPolicy[c.Policy] > MaxPerPolicy {
			c.err = refuse(fmt.Sprintf("a policy may have %d programs", MaxPerPolicy))
		} else if len(c.SharedState) > 0 {
			c.err = m.look(ctx, c)
		}
		all = append(all, c)
	}
	return all
}

// revisionOf changes with the object and with what the plan says of it; empty where the
// object has to be read to know.
func revisionOf(program *v1alpha1.PlanProgram) string {
	text, err := json.Marshal(program)
	if program.Revision == "" || err != nil {
		return ""
	}
	return shortHash(text)
}

// look reads a program, unless the one in use is of the same revision.
func (m *Manager) look(ctx context.Context, c *candidate) error {
	revision := revisionOf(c.PlanProgram)
	if last := m.last[c.key]; m.inUse[identity(c.key)] != nil && revision != "" && last.revision == revision {
		c.object, c.layouts = last.object, last.layouts
		return nil
	}
	if err := m.readAgain(ctx, c); err != nil {
		return err
	}
	if err := c.readLayouts(); err != nil {
		return err
	}
	m.last[c.key] = seen{revision, c.object, c.layouts}
	return nil
}

// readLayouts finds how the object declares what it is to share.
func (c *candidate) readLayouts() error {
	if len(c.SharedState) == 0 {
		return nil
	}
	spec, err := readObject(c.source)
	if err != nil {
		return err
	}
	c.layouts = map[string]*layout{}
	for _, shared := range c.SharedState {
		declared := spec.Maps[shared.Name]
		if declared == nil {
			return refuse("the object has no map ", shared.Name, ", which sharedState of the policy names")
		}
		if c.layouts[shared.Name], err = layoutOf(shared.Name, declared); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) readAgain(ctx context.Context, c *candidate) (err error) {
	if c.source, err = m.read(ctx, &c.Program); err != nil {
		return err
	}
	c.object = contentOf(c.PlanProgram, c.source)
	return nil
}

// readsOthers: it is to share a map of another policy.
func (c *candidate) readsOthers() bool {
	return slices.ContainsFunc(c.SharedState, func(shared v1alpha1.SharedState) bool { return !isOwn(c.PlanProgram, &shared) })
}
