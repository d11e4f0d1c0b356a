// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"braid.dev/braid/agent/endpoints/namespace"
)

// failHeld logs that an interface is not guarded, unless it is gone.
func (g *Guard) failHeld(o *objects, index int, err error) {
	link, missing := o.netlink.LinkByIndex(index)
	if missing == nil {
		g.options.Log.Error(err, "failed to guard the interface of a new pod", "interface", link.Attrs().Name)
	}
}

// rest is the least time between two looks at the node's interfaces.
const rest = 10 * time.Millisecond

// followInterfaces guards interfaces of new pods as soon as they are there.
func (g *Guard) followInterfaces(ctx context.Context) error {
	if g.options.Links == nil {
		return nil
	}
	changes, err := g.options.Links(ctx)
	if err != nil {
		return fmt.Errorf("failed to watch for interfaces of new pods: %w", err)
	}
	for range changes {
		if err := g.holdAdded(); err != nil {
			g.options.Log.Error(err, "failed to guard the interfaces of new pods")
		}
		time.Sleep(rest) // pods can change their interfaces as fast as they can
	}
	return nil
}

// holdAdded guards interfaces that are there since the last model, and leaves all others
// as they are.
func (g *Guard) holdAdded() error {
	n := &g.newPods
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.objects == nil || n.plan == nil {
		return nil
	}
	found, err := n.unknownInterfaces(g.options.Log)
	if err != nil {
		return err
	}
	maps.DeleteFunc(found, func(index int, held heldInterface) bool { return n.held[index] == held })
	if len(found) == 0 {
		return nil
	}
	maps.Copy(n.held, found)
	if err := n.write(); err != nil {
		return err
	}
	return namespace.Do(n.objects.home, func() error {
		var failed error
		for index, held := range found {
			failed = errors.Join(failed, g.guardHeld(index, held))
		}
		return failed
	})
}

// guardHeld has packets of an interface charged and checked.
func (g *Guard) guardHeld(index int, held heldInterface) error {
	n := &g.newPods
	if err := n.objects.maps().Interfaces.Put(uint32(index), held.row); err != nil {
		return fmt.Errorf("writing the interface of a new pod: %w", err)
	}
	if !n.isChecked(held) {
		return nil
	}
	if err := g.endpoints.Attach(index, n.objects.ownSource.OwnSource); err != nil {
		g.failHeld(n.objects, index, err)
	}
	return nil
}
