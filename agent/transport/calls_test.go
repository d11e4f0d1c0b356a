// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/api/v1alpha1"
)

// optionCalls counts how often the kernel asks programs what options a segment of one of the
// pods' sockets is to have.
func (p *pair) optionCalls(t *testing.T) func() (calls uint64) {
	t.Helper()
	const optionLength = 14 // BPF_SOCK_OPS_HDR_OPT_LEN_CB
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2})
	require.NoError(t, err)
	t.Cleanup(func() { _ = counts.Close() })
	cookies := []uint64{}
	for _, path := range []string{p.client.Path(), p.server.Path()} {
		identity, err := namespace.IdentifyAt(path)
		require.NoError(t, err)
		require.NoError(t, counts.Put(identity.Cookie, uint64(0)))
		cookies = append(cookies, identity.Cookie)
	}
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SockOps, AttachType: ebpf.AttachCGroupSockOps, License: "GPL", Instructions: asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word),
		asm.JNE.Imm(asm.R2, optionLength, "out"),
		asm.FnGetNetnsCookie.Call(),
		asm.StoreMem(asm.RFP, -8, asm.R0, asm.DWord),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("out"),
		asm.Return(),
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = program.Close() })
	tree, err := pace.CgroupRoot()
	require.NoError(t, err)
	attached, err := link.AttachCgroup(link.CgroupOptions{Path: tree, Attach: ebpf.AttachCGroupSockOps, Program: program})
	require.NoError(t, err)
	t.Cleanup(func() { _ = attached.Close() })
	return func() (calls uint64) {
		for _, cookie := range cookies {
			var of uint64
			require.NoError(t, counts.Lookup(cookie, &of))
			calls += of
		}
		return calls
	}
}

// mostOptionCalls of a short connection, at both ends: for the segment that ends the handshake,
// and for what each end acknowledges. With each packet there would be ten.
const mostOptionCalls = 7

func TestAShortConnectionThatAsksHasNoCallForEachPacket(t *testing.T) {
	asks := acceptsAll("0.0.0.0/0")
	asks.Request = &v1alpha1.TransportRequest{InitialWindow: new(int32(20)), UserTimeout: after(30 * time.Second)}
	for _, protocol := range []string{"TCP", "MPTCP"} {
		t.Run(protocol, func(t *testing.T) {
			p := newPair(t, nil)
			p.serve(t, p.server.IPv4)
			p.apply(t, asks, asks)
			calls := p.optionCalls(t)
			all := make([]uint64, 21)
			for i := range all {
				before := calls()
				client, server := p.connect(t, protocol, p.server.IPv4)
				ping(t, client, server)
				require.NoError(t, server.Close())
				_, err := client.Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
				require.NoError(t, client.Close())
				time.Sleep(20 * time.Millisecond) // until the last of its segments is sent
				all[i] = calls() - before
			}
			slices.Sort(all)
			if all[len(all)/2] > mostOptionCalls {
				t.Errorf("the connections have %v calls for their options", all)
			}
		})
	}
}
