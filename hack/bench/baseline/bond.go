// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// BondMode is how a bond divides packets among its slaves, in the words of the driver.
type BondMode string

// The modes.
const (
	BalanceRoundRobin BondMode = "balance-rr"
	Layer34           BondMode = "layer3+4"
)

// mostSlaves is MOST_SLAVES.
const mostSlaves = 4

// Slave is a NIC of a bond, and the peer's address there.
type Slave struct {
	Interface int
	NextHop   netip.Addr
}

// Bond is one that is at work.
type Bond struct {
	objects  BondObjects
	attached link.Link
}

// NewBond has what leaves by a NIC for the peer's pods divided among the slaves, of which it
// is one. It is to be called in the namespace of the NIC.
func NewBond(mode BondMode, nic int, slaves []Slave, pods netip.Prefix) (*Bond, error) {
	if len(slaves) == 0 || len(slaves) > mostSlaves {
		return nil, fmt.Errorf("a bond of %d slaves: it has 1 to %d", len(slaves), mostSlaves)
	}
	spec, err := LoadBond()
	if err != nil {
		return nil, fmt.Errorf("reading the bond's program: %w", err)
	}
	var table [mostSlaves]struct{ Interface, NextHop uint32 }
	for i, slave := range slaves {
		table[i].Interface, table[i].NextHop = uint32(slave.Interface), addressWord(slave.NextHop)
	}
	byTurns := uint32(0)
	if mode == BalanceRoundRobin {
		byTurns = 1
	}
	for name, value := range map[string]any{
		"slaves": table, "count": uint32(len(slaves)), "by_turns": byTurns,
		"pods": addressWord(pods.Masked().Addr()), "mask": binary.NativeEndian.Uint32(binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-pods.Bits()))),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return nil, fmt.Errorf("setting %s of the bond: %w", name, err)
		}
	}
	b := &Bond{}
	if err := spec.LoadAndAssign(&b.objects, nil); err != nil {
		return nil, fmt.Errorf("loading the bond's program: %w", err)
	}
	b.attached, err = link.AttachTCX(link.TCXOptions{Interface: nic, Program: b.objects.Bond, Attach: ebpf.AttachTCXEgress})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("attaching the bond's program: %w", err), b.objects.Close())
	}
	return b, nil
}

// addressWord is an IPv4 address as it lies in a packet.
func addressWord(address netip.Addr) uint32 {
	bytes := address.As4()
	return binary.NativeEndian.Uint32(bytes[:])
}

// Close takes the bond away.
func (b *Bond) Close() error { return errors.Join(b.attached.Close(), b.objects.Close()) }
