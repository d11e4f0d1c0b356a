// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/api/v1alpha1"
)

// scheduleFunctions are the kernel's functions that a schedule may call: those
// that read and set its own sockets, and its own maps.
var scheduleFunctions = []asm.BuiltinFunc{
	asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnMapPushElem, asm.FnMapPopElem, asm.FnMapPeekElem,
	asm.FnForEachMapElem, asm.FnLoop, asm.FnSpinLock, asm.FnSpinUnlock,
	asm.FnKtimeGetNs, asm.FnKtimeGetCoarseNs, asm.FnKtimeGetBootNs, asm.FnJiffies64, asm.FnGetPrandomU32, asm.FnGetSmpProcessorId,
	asm.FnSetsockopt, asm.FnGetsockopt, asm.FnSockOpsCbFlagsSet, asm.FnGetNetnsCookie, asm.FnGetSocketCookie,
	asm.FnSkStorageGet, asm.FnSkStorageDelete, asm.FnSkcToTcpSock, asm.FnSkcToMptcpSock, asm.FnTcpSock, asm.FnSkFullsock,
	asm.FnRingbufReserve, asm.FnRingbufSubmit, asm.FnRingbufDiscard, asm.FnRingbufOutput, asm.FnRingbufQuery,
}

func loadSchedule(spec *ebpf.CollectionSpec, name string, shared []Shared) (*Program, error) {
	chosen, err := onlyProgram(spec, name, ebpf.SockOps)
	if err != nil {
		return nil, err
	}
	namespaces := spec.Maps[namespacesMap]
	if namespaces == nil || namespaces.Type != ebpf.Hash || namespaces.KeySize != 8 || namespaces.ValueSize != 1 {
		return nil, refuse("it has no map ", namespacesMap, " from the cookies of network namespaces (__u64) to __u8: ",
			"a schedule governs the pods that the agent puts there, and no others")
	}
	if err := errors.Join(judgeScheduleMaps(spec, shared), judgeShared(spec, shared), judgeFunctions(chosen, scheduleFunctions)); err != nil {
		return nil, err
	}
	collection, err := loadShared(spec, shared)
	if err != nil {
		return nil, err
	}
	block := &Program{
		Type: v1alpha1.ProgramSchedule, collection: collection,
		program: collection.Programs[chosen.Name], namespaces: collection.Maps[namespacesMap],
	}
	if block.Instructions, err = judgeInstructions(block.program); err != nil {
		block.Close()
		return nil, err
	}
	return block, nil
}

func judgeScheduleMaps(spec *ebpf.CollectionSpec, shared []Shared) error {
	for name, m := range spec.Maps {
		// A socket's storage is freed with its socket.
		if m.Type == ebpf.SkStorage && m.Pinning == ebpf.PinNone {
			continue
		}
		if err := judgeMaps(&ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{name: m}}, namesOf(shared)...); err != nil {
			return err
		}
	}
	return nil
}

// putSchedule attaches the new program, for the pods of the old one, beside it.
func (m *Manager) putSchedule(next *inUse, loaded *Program, current *inUse) (err error) {
	next.kind = schedulePin
	if next.namespaces, err = loaded.namespaces.Clone(); err != nil {
		return fmt.Errorf("keeping the schedule's namespaces: %w", err)
	}
	if current != nil && current.kind == schedulePin {
		governed, err := entries.Keys[uint64](current.namespaces)
		if err != nil {
			return err
		}
		if err := setNamespaces(next.namespaces, governed); err != nil {
			return err
		}
	}
	next.link, err = link.AttachCgroup(link.CgroupOptions{
		Path: m.options.Cgroup, Attach: ebpf.AttachCGroupSockOps, Program: loaded.program,
	})
	if err != nil {
		return fmt.Errorf("attaching the schedule: %w", err)
	}
	mapPin, linkPin := m.pin(next.namespacesPinName()), m.pin(next.pinName())
	err = errors.Join(next.namespaces.Pin(mapPin), next.link.Pin(linkPin))
	if err != nil {
		return errors.Join(fmt.Errorf("pinning the schedule: %w", err), unpin(mapPin), unpin(linkPin))
	}
	return nil
}

// Govern lets a schedule govern the sockets of exactly these network namespaces,
// named by their cookies. The program must be among the schedules of the last Apply.
func (m *Manager) Govern(key string, cookies []uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	block := m.inUse[identity(key)]
	if block == nil || block.kind != schedulePin {
		return fmt.Errorf("program %s is not a schedule in use", key)
	}
	return setNamespaces(block.namespaces, cookies)
}

func setNamespaces(namespaces *ebpf.Map, cookies []uint64) error {
	wanted := map[uint64]bool{}
	for _, cookie := range cookies {
		wanted[cookie] = true
		if err := namespaces.Put(cookie, uint8(1)); err != nil {
			return fmt.Errorf("adding a network namespace to a schedule: %w", err)
		}
	}
	if err := entries.Forget(namespaces, func(cookie uint64) bool { return !wanted[cookie] }); err != nil {
		return fmt.Errorf("removing network namespaces from a schedule: %w", err)
	}
	return nil
}
