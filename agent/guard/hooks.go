// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/attach"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// attach puts the programs on exactly the interfaces that need them. One that fails
// does not keep the others from being guarded.
func (g *Guard) attach(m *node.Model, report *node.Report) error {
	nics := map[int]types.UID{}
	for index := range g.places(m) {
		nics[int(index)] = ""
	}
	loaded := g.loaded.Value
	failed := g.attachAll(g.tunnels, func() map[int]types.UID { return steered(m) }, report, anywhere, loaded.nameSender.NameSender)
	failed = errors.Join(failed, g.attachAll(g.nics, func() map[int]types.UID { return nics }, report, anywhere, loaded.meter.Meter))
	checked := func() map[int]types.UID {
		return g.checkedNewPods(g.interfacesWith(func(guard *v1alpha1.PlanGuard) bool { return guard.SpoofCheck }))
	}
	failed = errors.Join(failed, g.attachAll(g.endpoints, checked, report, g.comesLate, loaded.ownSource.OwnSource))
	parsed := func() map[int]types.UID {
		return g.interfacesWith(func(guard *v1alpha1.PlanGuard) bool { return guard.DropUnparsable })
	}
	return errors.Join(failed, g.attachAll(g.unparsable, parsed, report, anywhere, loaded.unparsable.Unparsable, loaded.unparsable.Unparsable))
}

// anywhere is for programs whose place does not matter, or that are put there as they are
// attached.
func anywhere(int) (bool, error) { return false, nil }

// steered are the devices of tunnels in whose packets senders can be named.
func steered(m *node.Model) map[int]types.UID {
	devices := map[int]types.UID{}
	for i := range m.Tunnels {
		if m.Tunnels[i].Kind.Steered() {
			devices[m.Tunnels[i].Index] = ""
		}
	}
	return devices
}

// interfacesWith are those of the endpoints whose guardrails ask for something.
func (g *Guard) interfacesWith(asks func(*v1alpha1.PlanGuard) bool) map[int]types.UID {
	owner := map[int]types.UID{}
	for uid, endpoint := range g.rows.endpoints {
		if endpoint.Guard == nil || !asks(endpoint.Guard) {
			continue
		}
		for _, index := range endpoint.Interfaces() {
			owner[index] = uid
		}
	}
	return owner
}

// attachAll attaches programs, one for each hook, to exactly the wanted interfaces. What
// fails for one that belongs to an endpoint is reported for that.
func (g *Guard) attachAll(
	interfaces *attach.Interfaces, find func() map[int]types.UID, report *node.Report,
	isOutOfPlace func(index int) (bool, error), programs ...*ebpf.Program,
) error {
	attached, failed := interfaces.Attached()
	wanted := find() // now: what a new pod gets meanwhile is not in the list, or wanted
	var seen attach.Seen
	if len(wanted) > 0 {
		seen = attach.Look()
	}
	for index, owner := range wanted {
		err := interfaces.Ensure(seen, index, programs...)
		if err == nil {
			err = putInPlace(interfaces, index, programs, isOutOfPlace)
		}
		if err != nil && owner == heldBy {
			g.failHeld(g.loaded.Value, index, err)
			continue
		}
		if err != nil && owner != "" {
			report.Fail(owner, err)
			continue
		}
		failed = errors.Join(failed, err)
	}
	for index := range attached {
		if _, stays := wanted[index]; !stays {
			failed = errors.Join(failed, interfaces.Detach(index))
		}
	}
	return errors.Join(failed, interfaces.DetachOther())
}

// putInPlace attaches anew where another program of ours came later and to the
// wrong side.
func putInPlace(interfaces *attach.Interfaces, index int, programs []*ebpf.Program, isOutOfPlace func(int) (bool, error)) error {
	if interfaces.Mode() != "tcx" {
		return nil
	}
	wrong, err := isOutOfPlace(index)
	if err != nil || !wrong {
		return err
	}
	return errors.Join(interfaces.Detach(index), interfaces.Attach(index, programs...))
}

// comesLate is true when own_source runs after from_endpoint.
func (g *Guard) comesLate(index int) (bool, error) {
	other, err := pinnedProgram(filepath.Join(g.options.PinPath, "endpoints/*/links/from_endpoint_%d"), index)
	if err != nil || other == 0 {
		return false, err
	}
	info, err := g.loaded.Value.ownSource.OwnSource.Info()
	if err != nil {
		return false, fmt.Errorf("asking for the guard's program: %w", err)
	}
	own, _ := info.ID()
	query, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return false, fmt.Errorf("listing the programs on interface %d: %w", index, err)
	}
	at := func(id ebpf.ProgramID) int {
		return slices.IndexFunc(query.Programs, func(program link.AttachedProgram) bool { return program.ID == id })
	}
	return at(other) >= 0 && at(own) > at(other), nil
}

// pinnedProgram is the program of a pinned link; 0 if there is none.
func pinnedProgram(pattern string, index int) (ebpf.ProgramID, error) {
	pins, err := filepath.Glob(fmt.Sprintf(pattern, index))
	if err != nil || len(pins) == 0 {
		return 0, err
	}
	pinned, err := link.LoadPinnedLink(pins[len(pins)-1], nil)
	if err != nil {
		return 0, nil // it has gone meanwhile
	}
	defer pinned.Close()
	info, err := pinned.Info()
	if err != nil {
		return 0, fmt.Errorf("asking for the link %s: %w", pins[len(pins)-1], err)
	}
	return info.Program, nil
}
