// SPDX-License-Identifier: Apache-2.0

package packettest

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const (
	// mostStack is what the calls of a program may take of the stack together, in bytes.
	mostStack = 512
	// mostAboveTailCall is less than what the frames above a function with a tail call may take.
	mostAboveTailCall = 256
	// frameUnit is to what Linux 6.1 rounds each function's frame up; later kernels use 16.
	frameUnit = 32
)

// CheckStackForLinux61 returns an error for each program whose stack Linux 6.1 would refuse.
func CheckStackForLinux61(spec *ebpf.CollectionSpec) (refused error) {
	for _, program := range spec.Programs {
		stack := stackOnLinux61(program.Instructions)
		if stack.depth > mostStack {
			refused = errors.Join(refused, fmt.Errorf("%s needs %d bytes of stack, of %d", program.Name, stack.depth, mostStack))
		}
		if stack.aboveTailCall >= mostAboveTailCall {
			refused = errors.Join(refused, fmt.Errorf("%s has %d bytes of stack above a tail call, which may be %d",
				program.Name, stack.aboveTailCall, mostAboveTailCall-1))
		}
	}
	return refused
}

// stack is what the verifier of Linux 6.1 makes of the stack that a program and the functions
// that it calls use at most, in bytes. Later verifiers find less, so that a program that they
// take may be refused there.
type stack struct {
	depth         int
	aboveTailCall int // of the frames above a function that has a tail call
}

// function is one of a program.
type function struct {
	frame     int
	calls     []string
	tailCalls bool
}

func stackOnLinux61(program asm.Instructions) (most stack) {
	functions, first := functionsOf(program)
	var follow func(name string, above int)
	follow = func(name string, above int) {
		f := functions[name]
		if f.tailCalls && name != first {
			most.aboveTailCall = max(most.aboveTailCall, above)
		}
		above += (f.frame + frameUnit - 1) / frameUnit * frameUnit
		most.depth = max(most.depth, above)
		for _, called := range f.calls {
			follow(called, above)
		}
	}
	follow(first, 0)
	return most
}

// functionsOf finds a program's functions, by name, and which one it begins with.
func functionsOf(program asm.Instructions) (functions map[string]*function, first string) {
	functions = map[string]*function{}
	var in *function
	for i := range program {
		if name := program[i].Symbol(); name != "" {
			in = &function{frame: 1}
			functions[name] = in
			first = cmp.Or(first, name)
		}
		in.frame = max(in.frame, onStack(&program[i]))
		if program[i].IsFunctionCall() {
			in.calls = append(in.calls, program[i].Reference())
		}
		in.tailCalls = in.tailCalls || program[i].IsBuiltinCall() && program[i].Constant == int64(asm.FnTailCall)
	}
	return functions, first
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
