// SPDX-License-Identifier: Apache-2.0

package packettest_test

import (
	"encoding/binary"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/packettest"
)

// A program that answers with a segment's number, or with tc_index.
func answering(t *testing.T, with ...asm.Instruction) *ebpf.Program {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "GPL", Instructions: append(with, asm.Return())})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	return program
}

func streamOf(t *testing.T, program *ebpf.Program, frame []byte, of packettest.Segments) *ebpf.Program {
	t.Helper()
	stream, err := packettest.NewStream(program, frame, of)
	require.NoError(t, err)
	t.Cleanup(func() { stream.Close() })
	return stream.Program
}

func run(t *testing.T, program *ebpf.Program, frame []byte) (uint32, []byte) {
	t.Helper()
	options := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame))}
	verdict, err := program.Run(options)
	require.NoError(t, err)
	return verdict, options.DataOut
}

func TestEachRepeatIsTheNextSegment(t *testing.T) {
	const tcpAt, sequenceAt = 14 + 20, 14 + 20 + 4
	frame := packettest.Segment{From: ends["IPv4"][0], To: ends["IPv4"][1], Sequence: 1 << 30, Payload: make([]byte, 100)}.Frame()
	next := streamOf(t, answering(t, asm.Mov.Imm(asm.R0, 3)), frame, packettest.Segments{TCPAt: tcpAt, Step: 100})
	again := streamOf(t, answering(t, asm.Mov.Imm(asm.R0, 3)), frame, packettest.Segments{TCPAt: tcpAt})
	for repeat := range uint32(3) {
		verdict, after := run(t, next, frame)
		require.EqualValues(t, 3, verdict, "that of the program behind it")
		require.Equal(t, 1<<30+repeat*100, binary.BigEndian.Uint32(after[sequenceAt:]))
		_, after = run(t, again, frame)
		require.Equal(t, frame, after)
	}
}

func TestAStreamSetsTheTCIndex(t *testing.T) {
	frame := packettest.Segment{From: ends["IPv4"][0], To: ends["IPv4"][1]}.Frame()
	told := streamOf(t, answering(t, asm.LoadMem(asm.R0, asm.R1, packettest.TCIndexOffset, asm.Word)), frame,
		packettest.Segments{TCPAt: 14 + 20, TCIndex: 0xb001})
	verdict, _ := run(t, told, frame)
	require.EqualValues(t, 0xb001, verdict)
}
