// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/endpoint"
)

// drain gives endpoints that shall have no chain the one without rules: with it the
// programs undo what rules did to subflows.
func (h *half) drain(wanted []desired) error {
	keep := map[types.UID]bool{}
	for i := range wanted {
		keep[wanted[i].UID] = true
	}
	isFirst := true
	for uid, a := range h.endpoints {
		if keep[uid] || !a.draining.IsZero() {
			continue
		}
		if isFirst {
			isFirst = false
			if err := h.newEpoch(); err != nil {
				return err
			}
		}
		old := replaced{word: a.word}
		if err := h.point(a, endpoint.MakeWord(empty, empty, h.numbers.Epoch)); err != nil {
			return err
		}
		a.rules, a.draining = nil, time.Now()
		h.replace(old)
	}
	return nil
}

// isDraining is true while endpoints without rules wait for what their rules did to
// be undone.
func (h *half) isDraining() bool {
	for _, a := range h.endpoints {
		if !a.draining.IsZero() {
			return true
		}
	}
	return false
}

// patience is how long subflows have, after the last rule is gone, until one of
// their packets lets its effects be undone.
const patience = 10 * time.Minute

// dropDrained takes the programs off endpoints whose rules are gone and undone.
func (h *half) dropDrained() error {
	if !h.isDraining() {
		return nil
	}
	engaged, err := h.engaged()
	if err != nil {
		return err
	}
	gone := map[types.UID]*attached{}
	for uid, a := range h.endpoints {
		if a.draining.IsZero() || engaged[a.record.Number] && time.Since(a.draining) < patience && exists(a.index()) {
			continue
		}
		err = errors.Join(err, h.interfaces.Detach(a.index()))
		gone[uid] = a
	}
	return errors.Join(err, h.forget(gone))
}

func exists(index int) bool {
	_, err := netlink.LinkByIndex(index)
	return !errors.As(err, &netlink.LinkNotFoundError{})
}

// forgetRenumbered forgets endpoints whose numbers are others, or are others', in the
// model: as where an earlier agent gave numbers that are too large.
func (h *half) forgetRenumbered(model *node.Model) error {
	owners := map[uint32]types.UID{}
	for i := range model.Endpoints {
		owners[model.Endpoints[i].Number] = model.Endpoints[i].UID
	}
	gone := map[types.UID]*attached{}
	for uid, a := range h.endpoints {
		owner, isOwned := owners[a.record.Number]
		if isOwned && owner != uid || !isOwned && model.Endpoint(uid) != nil {
			gone[uid] = a
		}
	}
	return h.forget(gone)
}

// forget removes what is known of endpoints.
func (h *half) forget(endpoints map[types.UID]*attached) error {
	if len(endpoints) == 0 {
		return nil
	}
	numbers := map[uint32]bool{}
	for uid, a := range endpoints {
		if err := errors.Join(h.attachments.remove(a.index()), h.deleteRecord(uid)); err != nil {
			return err
		}
		numbers[a.record.Number] = true
		h.replace(replaced{word: a.word})
		delete(h.endpoints, uid)
	}
	return h.forgetRecords(numbers)
}
