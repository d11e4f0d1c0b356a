// SPDX-License-Identifier: Apache-2.0

// Package packettest has what tests and benchmarks of the packet programs share.
package packettest

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

const tcxNext = -1

// NewEmpty loads a TC program that does nothing: what the cost of the others is
// measured against.
func NewEmpty() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "empty",
		Type:         ebpf.SchedCLS,
		License:      "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, tcxNext), asm.Return()},
	})
}
