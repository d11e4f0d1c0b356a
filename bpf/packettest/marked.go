// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TCIndexOffset is that of tc_index in struct __sk_buff.
const TCIndexOffset = 44

// Marked is a program that sets tc_index, which a test run cannot, and goes on with another.
type Marked struct {
	Program *ebpf.Program
	next    *ebpf.Map // forgets its program when it is closed
}

// NewMarked loads one that goes on with a program.
func NewMarked(program *ebpf.Program, tcIndex int32) (m Marked, err error) {
	if m.next, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1}); err != nil {
		return m, err
	}
	if err := m.next.Put(uint32(0), program); err != nil {
		return m, errors.Join(err, m.next.Close())
	}
	m.Program, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{
		asm.Mov.Imm(asm.R2, tcIndex),
		asm.StoreMem(asm.R1, TCIndexOffset, asm.R2, asm.Word),
		asm.LoadMapPtr(asm.R2, m.next.FD()),
		asm.Mov.Imm(asm.R3, 0),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, 0), // no verdict of ours
		asm.Return(),
	}})
	if err != nil {
		return m, errors.Join(err, m.next.Close())
	}
	return m, nil
}

// Close lets go of it.
func (m Marked) Close() error { return errors.Join(m.Program.Close(), m.next.Close()) }
