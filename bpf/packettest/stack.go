// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	// mostStack is what the calls of a program may take of the stack together, in bytes.
	mostStack = 512
	// frameUnit is to what Linux 6.1 rounds each function's frame up; later kernels use 16.
	frameUnit = 32
)

// CheckStackForLinux61 returns an error for each program whose stack Linux 6.1 would refuse.
func CheckStackForLinux61(spec *ebpf.CollectionSpec) (refused error) {
	for _, program := range spec.Programs {
		if depth := stackOnLinux61(program.Instructions); depth > mostStack {
			refused = errors.Join(refused, fmt.Errorf("%s needs %d bytes of stack, of %d", program.Name, depth, mostStack))
		}
	}
	return refused
}

// stackOnLinux61 is what the verifier of Linux 6.1 makes of the stack that a program and the
// functions that it calls use at most, in bytes. Later verifiers find less, so that a program
// that they take may be refused there.
func stackOnLinux61(program asm.Instructions) int {
	frames, calls := map[string]int{}, map[string][]string{}
	var function, first string
	for i := range program {
		if name := program[i].Symbol(); name != "" {
			function = name
			frames[function] = 1
			if first == "" {
				first = name
			}
		}
		frames[function] = max(frames[function], onStack(&program[i]))
		if program[i].IsFunctionCall() {
			calls[function] = append(calls[function], program[i].Reference())
		}
	}
	var deepest func(string) int
	deepest = func(function string) (depth int) {
		for _, called := range calls[function] {
			depth = max(depth, deepest(called))
		}
		return depth + (frames[function]+frameUnit-1)/frameUnit*frameUnit
	}
	return deepest(first)
}

// onStack is how far an instruction reaches down from the top of its function's frame, or may
// reach: what is subtracted from a register is most often from the top's address.
func onStack(instruction *asm.Instruction) int {
	down := 0
	switch class := instruction.OpCode.Class(); {
	case class.IsLoad() && instruction.Src == asm.RFP, class.IsStore() && instruction.Dst == asm.RFP:
		down = -int(instruction.Offset)
	case instruction.OpCode.ALUOp() == asm.Add && instruction.OpCode.Source() == asm.ImmSource:
		down = -int(instruction.Constant)
	}
	if down > mostStack {
		return 0
	}
	return down
}
