// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/guard"
)

// newPods are the interfaces of pods that the plan does not know yet. Each has a row of
// its own, which no endpoint has, until it is known whose it is. It has a lock of its own,
// which is taken after the guard's: a new interface does not wait until a model is
// applied.
type newPods struct {
	mu      sync.Mutex
	objects *objects              // nil while there is nothing to hold
	plan    *v1alpha1.PlanNewPods // nil where new pods are not guarded
	paths   []v1alpha1.PlanPath
	known   map[int]bool    // interfaces of which it is known whose they are
	rows    map[uint32]bool // of endpoints
	// device is where the node's routes to pods lead, where that is not their own interface.
	device int
	held   map[int]heldInterface // by index
	freed  []uint32              // rows of those that are not held any more
}

type heldInterface struct {
	row uint32
	// master is the bridge that has it; 0 where none has.
	master int
}

// hold brings the interfaces that are held to the model, and to what there is by now.
func (g *Guard) hold(m *node.Model) error {
	n := &g.newPods
	n.mu.Lock()
	defer n.mu.Unlock()
	before, now := n.held, map[int]heldInterface{}
	n.objects, n.plan, n.rows = g.loaded.Value, m.NewPods(), map[uint32]bool{}
	for _, endpoint := range g.rows.endpoints {
		n.rows[endpoint.Number] = true
	}
	if n.plan != nil {
		n.paths, n.known, n.device = m.Plan.Spec.Paths, n.knownOf(m), m.PodDevice()
		found, err := n.unknownInterfaces(g.options.Log)
		if err != nil {
			return err
		}
		now = found
	}
	n.held, n.freed = now, nil
	for index, was := range before {
		if n.held[index].row != was.row {
			n.freed = append(n.freed, was.row)
		}
	}
	return errors.Join(n.write(), g.inheritPaid(before))
}

// knownOf keeps what was known where a look did not see everything.
func (n *newPods) knownOf(m *node.Model) map[int]bool {
	known := m.Known()
	if !m.LookComplete {
		maps.Copy(known, n.known)
	}
	return known
}

// begin goes on with what an earlier agent held.
func (n *newPods) begin(loaded *objects) (err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.held, err = loaded.readHeld()
	return err
}

// end leaves everything as it is.
func (n *newPods) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.objects, n.plan, n.held, n.freed = nil, nil, nil, nil
}

// unknownInterfaces are those that are to be held, with their rows: they keep the one
// that they have.
func (n *newPods) unknownInterfaces(log logr.Logger) (map[int]heldInterface, error) {
	ends, err := n.ends()
	found := map[int]heldInterface{}
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		maps.Copy(found, n.held) // some may be missing in the list
		maps.DeleteFunc(found, func(index int, _ heldInterface) bool { return n.known[index] })
	} else if err != nil {
		return nil, fmt.Errorf("listing the node's interfaces to find those of new pods: %w", err)
	}
	used := maps.Clone(n.rows)
	for _, held := range n.held {
		used[held.row] = true
	}
	for _, index := range slices.Sorted(maps.Keys(ends)) {
		row := n.held[index].row
		if row == 0 || n.rows[row] {
			row = freeRow(used)
		}
		if row == 0 {
			log.Error(fmt.Errorf("a node can guard %d endpoints and new pods", mostRows), "failed to guard the interface of a new pod", "interface", ends[index].Name)
			continue
		}
		found[index] = heldInterface{row, ends[index].MasterIndex}
	}
	return found, nil
}

// ends are the interfaces that may be pods', and of which it is not known whose they are.
func (n *newPods) ends() (map[int]endpoints.HostEnd, error) {
	ends, err := endpoints.HostEnds(n.objects.netlink)
	maps.DeleteFunc(ends, func(index int, end endpoints.HostEnd) bool {
		return n.known[index] || !end.IsOfPair() || paths.IsNamed(n.paths, end.Name)
	})
	if len(ends) == 0 {
		return nil, err
	}
	addresses, addressesErr := n.objects.netlink.AddrList(nil, netlink.FAMILY_ALL)
	for _, address := range addresses {
		if isNICs(&address) {
			delete(ends, address.LinkIndex)
		}
	}
	return ends, errors.Join(err, addressesErr)
}

// isNICs: others are in the address's network, so the interface that has it is no pod's.
func isNICs(address *netlink.Addr) bool {
	ones, bits := address.Mask.Size()
	return ones < bits && !address.IP.IsLinkLocalUnicast()
}

// freeRow takes the last row that is free: endpoints get the first ones. 0 is none.
func freeRow(used map[uint32]bool) uint32 {
	for row := uint32(mostRows); row > 0; row-- {
		if !used[row] {
			used[row] = true
			return row
		}
	}
	return 0
}

// write says what new pods may send, before anything refers to it.
func (n *newPods) write() error {
	routedBy := map[uint32]uint32{}
	var failed error
	for index, held := range n.held {
		allowance := guard.MeterAllowance{Flags: guard.NewPod, Price: price(float64(n.plan.MaxRate))}
		if n.plan.SpoofCheck {
			allowance.Flags |= guard.SpoofCheck
		}
		if n.device != 0 {
			routedBy[uint32(index)] = uint32(n.device)
		}
		if held.master != 0 {
			allowance.Flags |= guard.ChargedAtEntry
			routedBy[uint32(index)] = uint32(held.master)
		}
		failed = errors.Join(failed, n.objects.maps().Allowances.Put(held.row, allowance))
	}
	failed = errors.Join(failed, entries.Replace(n.objects.ownSource.RoutedBy, routedBy, "where routes to new pods lead"))
	if failed != nil {
		return fmt.Errorf("failed to write what new pods may send: %w", failed)
	}
	return nil
}

// isChecked: a program is to look at what comes from the interface.
func (n *newPods) isChecked(held heldInterface) bool { return n.plan.SpoofCheck || held.master != 0 }

// inheritPaid has pods that are known now pay for what they sent before: they get no
// burst anew.
func (g *Guard) inheritPaid(before map[int]heldInterface) error {
	usages := g.loaded.Value.maps().Usages
	for _, endpoint := range g.rows.endpoints {
		for _, index := range endpoint.Interfaces() {
			held, was := before[index]
			if !was {
				continue
			}
			var old, own guard.MeterUsage
			if err := errors.Join(usages.Lookup(held.row, &old), usages.Lookup(endpoint.Number, &own)); err != nil {
				return fmt.Errorf("failed to read what %s sent as a new pod: %w", endpoint.FullName(), err)
			}
			own.Paid, own.SpoofedPackets = max(own.Paid, old.Paid), own.SpoofedPackets+old.SpoofedPackets
			if err := usages.Put(endpoint.Number, own); err != nil {
				return fmt.Errorf("failed to charge %s for what it sent as a new pod: %w", endpoint.FullName(), err)
			}
		}
	}
	return nil
}

// heldBy is in the place of the endpoint whose guardrails an interface is checked for.
const heldBy types.UID = "nobody's"

// checkedNewPods adds the interfaces at which new pods are checked.
func (g *Guard) checkedNewPods(checked map[int]types.UID) map[int]types.UID {
	n := &g.newPods
	n.mu.Lock()
	defer n.mu.Unlock()
	for index, held := range n.held {
		if n.isChecked(held) {
			checked[index] = heldBy
		}
	}
	return checked
}

// count is how many interfaces are held, and whether new pods are guarded.
func (n *newPods) count() (held int, guarded bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.held), n.plan != nil
}

// readHeld finds what an earlier agent held.
func (o *objects) readHeld() (map[int]heldInterface, error) {
	held := map[int]heldInterface{}
	var index, row uint32
	entries := o.maps().Interfaces.Iterate()
	for entries.Next(&index, &row) {
		var allowance guard.MeterAllowance
		if row > mostRows {
			continue
		}
		if err := o.maps().Allowances.Lookup(row, &allowance); err != nil {
			return nil, fmt.Errorf("reading what an earlier agent let new pods send: %w", err)
		}
		if allowance.Flags&guard.NewPod != 0 {
			held[int(index)] = heldInterface{row: row}
		}
	}
	if err := entries.Err(); err != nil {
		return nil, fmt.Errorf("reading the interfaces of an earlier agent's new pods: %w", err)
	}
	return held, nil
}
