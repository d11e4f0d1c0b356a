// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"time"

	"braid.dev/braid/bpf/uplink"
)

// The programs count the flows of each address that begins some, so that none takes
// the whole table. What they do not see, that a flow was silently given up or pushed
// out, is corrected here.

// drift is by how much a count may be off: flows begin and end while they are counted.
const drift = 64

// recountInterval spaces the counts out: one reads all flows.
const recountInterval = 25 * time.Second

// recount corrects the counts of flows, and forgets how many unknown connections were
// joined.
func (d *Datapath) recount() error {
	if time.Since(d.counted) < recountInterval {
		return nil
	}
	d.counted = time.Now()
	counts, living := map[uplink.ToUplinkAddress]uint32{}, uint32(0)
	err := d.eachFlow(func(key uplink.ToUplinkFlowKey, flow uplink.ToUplinkFlow) {
		if flow.Ended == uplink.EndedBoth {
			return
		}
		living++
		if flow.Role == uplink.RoleInitiator {
			counts[key.Local]++
		} else {
			counts[key.Remote]++
		}
	})
	if err != nil {
		return err
	}
	if err := d.correctOwners(counts); err != nil {
		return err
	}
	var counted uint32
	if err := d.loaded.Value.maps().LivingFlows.Lookup(uint32(0), &counted); err != nil {
		return fmt.Errorf("reading the number of flows: %w", err)
	}
	if !isOff(counted, living) {
		return nil
	}
	if err := d.loaded.Value.maps().LivingFlows.Put(uint32(0), living); err != nil {
		return fmt.Errorf("correcting the number of flows: %w", err)
	}
	return nil
}

func (d *Datapath) correctOwners(counts map[uplink.ToUplinkAddress]uint32) error {
	known, err := readAll[uplink.ToUplinkOwner](d.loaded.Value.maps().Owners)
	if err != nil {
		return fmt.Errorf("reading whose flows there are: %w", err)
	}
	for address, owner := range known {
		count := counts[toAddress(address)]
		if owner.Unknown == 0 && !isOff(owner.Flows, count) {
			continue
		}
		if isOff(owner.Flows, count) {
			owner.Flows = count
		}
		owner.Unknown = 0
		if err := d.loaded.Value.maps().Owners.Put(toAddress(address), owner); err != nil {
			return fmt.Errorf("correcting how many flows %s has: %w", address, err)
		}
	}
	return nil
}

func isOff(counted, actual uint32) bool {
	return counted > actual+drift || actual > counted+drift
}
