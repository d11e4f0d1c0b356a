// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"encoding/binary"
	"errors"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Stream is a program that makes each repeat of a test run's packet the next segment of a
// stream, and goes on with another program. The same segment again and again would be one that
// TCP repeats, for which programs do more.
type Stream struct {
	Program *ebpf.Program
	next    *ebpf.Map // forgets its program when it is closed
	number  *ebpf.Map // of the next segment
}

// A segment's number in its header, and where a frame's bytes are in struct __sk_buff.
const (
	sequenceAt  = 4
	dataAt      = 76
	dataEndAt   = 80
	tcpHeader   = 20
	programSlot = 0
)

// Segments say which packets a Stream makes of one.
type Segments struct {
	// TCPAt is where TCP's header is in the frame, behind those of a tunnel too.
	TCPAt int
	// Step is from one segment to the next; 0: the same again and again.
	Step int32
	// TCIndex that each has.
	TCIndex int32
}

// NewStream loads one that goes on with a program, and begins with this frame.
func NewStream(program *ebpf.Program, frame []byte, of Segments) (s Stream, err error) {
	if s.next, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.ProgramArray, KeySize: 4, ValueSize: 4, MaxEntries: 1}); err != nil {
		return s, err
	}
	if s.number, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1}); err != nil {
		return s, errors.Join(err, s.Close())
	}
	first := binary.BigEndian.Uint32(frame[of.TCPAt+sequenceAt:])
	err = errors.Join(s.next.Put(uint32(programSlot), program), s.number.Put(uint32(0), first))
	if err != nil {
		return s, errors.Join(err, s.Close())
	}
	s.Program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "stream", Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: s.instructions(of),
	})
	if err != nil {
		return s, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s Stream) instructions(of Segments) asm.Instructions {
	return asm.Instructions{
		asm.Mov.Imm(asm.R2, of.TCIndex),
		asm.StoreMem(asm.R1, TCIndexOffset, asm.R2, asm.Word),
		asm.LoadMem(asm.R2, asm.R1, dataAt, asm.Word),
		asm.LoadMem(asm.R3, asm.R1, dataEndAt, asm.Word),
		asm.Mov.Reg(asm.R4, asm.R2),
		asm.Add.Imm(asm.R4, int32(of.TCPAt+tcpHeader)),
		asm.JGT.Reg(asm.R4, asm.R3, "go on"),
		asm.LoadMapValue(asm.R3, s.number.FD(), 0),
		asm.LoadMem(asm.R4, asm.R3, 0, asm.Word),
		asm.Mov.Reg(asm.R5, asm.R4),
		asm.Add.Imm(asm.R5, of.Step),
		asm.StoreMem(asm.R3, 0, asm.R5, asm.Word),
		asm.HostTo(asm.BE, asm.R4, asm.Word),
		asm.StoreMem(asm.R2, int16(of.TCPAt+sequenceAt), asm.R4, asm.Word),
		asm.LoadMapPtr(asm.R2, s.next.FD()).WithSymbol("go on"),
		asm.Mov.Imm(asm.R3, programSlot),
		asm.FnTailCall.Call(),
		asm.Mov.Imm(asm.R0, tcxNext),
		asm.Return(),
	}
}

// Close lets go of it.
func (s Stream) Close() error {
	return errors.Join(s.Program.Close(), s.next.Close(), s.number.Close())
}
