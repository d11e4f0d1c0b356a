// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

// recentSlices are so many of the last slices in which a flow must have sent much to be busy.
const recentSlices = 8

// staleSlices is for how many slices a flow must have sent little to be forgotten: what is
// read many times a second stays as short as what goes on.
const staleSlices = 64

// BusyFlow is a flow that sends much.
type BusyFlow struct {
	Local, Remote netip.AddrPort
	// Path is the number of the one by which it sent last.
	Path uint8
	// Shared is true for a flow that is to leave by the same path as others of its
	// connection, SharedPath: see Share.
	Shared     bool
	SharedPath uint8
	// Busy is false where it has not sent much of late, or anything where it shares a path.
	Busy bool
}

// BusyFlows are those that send much, and those that did and share a path. They may be asked
// for at any time. There is none while nothing is loaded.
func (d *Datapath) BusyFlows() ([]BusyFlow, error) { return d.busy.read() }

// Share has a busy flow leave by this path, from when it next sends much on, as long as the
// path is one that the flow may use.
func (d *Datapath) Share(flow BusyFlow, path uint8) error {
	return d.busy.write(flow, uplink.Together|path<<uplink.TogetherPath)
}

// Part has it leave by its own path again.
func (d *Datapath) Part(flow BusyFlow) error { return d.busy.write(flow, 0) }

// PathOf is the number of the path by which a flow sent last; false where it is not known.
func (d *Datapath) PathOf(local, remote netip.AddrPort) (path uint8, known bool, err error) {
	return d.busy.pathOf(local, remote)
}

// busyTable reads and writes beside the rounds.
type busyTable struct {
	loadedMaps
	// They are read many times a second.
	entries entries.Reader[uplink.ToUplinkFlowKey, uplink.ToUplinkBusyFlow]
}

// loadedMaps are those of the programs, for what goes on beside the rounds.
type loadedMaps struct {
	mu   sync.Mutex
	maps *uplink.ToUplinkMaps // nil while nothing is loaded
}

func (t *loadedMaps) use(maps *uplink.ToUplinkMaps) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.maps = maps
}

// do does nothing while nothing is loaded.
func (t *loadedMaps) do(with func(*uplink.ToUplinkMaps) error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.maps == nil {
		return nil
	}
	return with(t.maps)
}

func (t *busyTable) read() (flows []BusyFlow, err error) {
	now, err := slice()
	if err != nil {
		return nil, err
	}
	var stale []uplink.ToUplinkFlowKey
	err = t.do(func(maps *uplink.ToUplinkMaps) error {
		failed := t.entries.Each(maps.BusyFlows, func(key *uplink.ToUplinkFlowKey, busy *uplink.ToUplinkBusyFlow) {
			ago := int32(now - busy.Slice) // less than 0 where the next slice has begun meanwhile
			flow := BusyFlow{
				Local: bpf.AddrPort(key.Local.Word, key.LocalPort), Remote: bpf.AddrPort(key.Remote.Word, key.RemotePort),
				Path: busy.Path, Shared: busy.Together&uplink.Together != 0, SharedPath: busy.Together >> uplink.TogetherPath, Busy: ago <= recentSlices,
			}
			switch {
			case flow.Busy || flow.Shared:
				flows = append(flows, flow)
			case ago > staleSlices:
				stale = append(stale, *key)
			}
		})
		return errors.Join(failed, forgetBusy(maps.BusyFlows, stale))
	})
	return flows, err
}

// forgetBusy stops at a flow that the kernel has forgotten meanwhile: the next time is soon.
func forgetBusy(busy *ebpf.Map, stale []uplink.ToUplinkFlowKey) error {
	if len(stale) == 0 {
		return nil
	}
	if _, err := busy.BatchDelete(stale, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("forgetting flows that send little: %w", err)
	}
	return nil
}

// write says by which path a flow leaves. One that the programs have forgotten is on its own
// path, or will be when it next sends much.
func (t *busyTable) write(flow BusyFlow, together uint8) error {
	key := keyOf(flow.Local, flow.Remote)
	return t.do(func(maps *uplink.ToUplinkMaps) error {
		var busy uplink.ToUplinkBusyFlow
		err := maps.BusyFlows.Lookup(key, &busy)
		if err == nil && busy.Together != together {
			busy.Together = together
			err = maps.BusyFlows.Update(key, busy, ebpf.UpdateExist)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("saying by which path a flow leaves: %w", err)
		}
		return nil
	})
}

func keyOf(local, remote netip.AddrPort) uplink.ToUplinkFlowKey {
	return uplink.ToUplinkFlowKey{
		Local: toAddress(local.Addr()), Remote: toAddress(remote.Addr()),
		LocalPort: bpf.Port(local.Port()), RemotePort: bpf.Port(remote.Port()),
	}
}

func (t *busyTable) pathOf(local, remote netip.AddrPort) (path uint8, known bool, err error) {
	err = t.do(func(maps *uplink.ToUplinkMaps) error {
		var flow uplink.ToUplinkFlow
		err := maps.Flows.Lookup(keyOf(local, remote), &flow)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("asking by which path a flow leaves: %w", err)
		}
		path, known = flow.Last, err == nil && flow.Last < uplink.MaxPaths
		return nil
	})
	return path, known, err
}

// slice is the number of the present one, as the programs count them.
func slice() (uint32, error) {
	now, err := tick()
	return now >> (uplink.SliceBits - uplink.Tick), err
}
