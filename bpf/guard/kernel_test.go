// SPDX-License-Identifier: Apache-2.0

package guard_test

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/guard"
	"braid.dev/braid/bpf/packettest"
)

// The helpers that the programs may call, all of them in Linux 6.1.
var helpers = []asm.BuiltinFunc{asm.FnMapLookupElem, asm.FnKtimeGetNs, asm.FnRedirect, asm.FnSkbLoadBytes, asm.FnSkbLoadBytesRelative, asm.FnFibLookup, asm.FnGetHashRecalc}

const mostVerified = 10_000

func TestProgramsNeedNothingThatIsNewerThanLinux61(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"meter": guard.LoadMeter, "own_source": guard.LoadOwnSource, "unparsable": guard.LoadUnparsable, "leave_queue": guard.LoadLeaveQueue,
		"name_sender": guard.LoadNameSender,
	} {
		spec, err := load()
		require.NoError(t, err)
		for _, instruction := range spec.Programs[name].Instructions {
			if instruction.IsBuiltinCall() && !slices.Contains(helpers, asm.BuiltinFunc(instruction.Constant)) {
				t.Errorf("%s calls the helper %v", name, asm.BuiltinFunc(instruction.Constant))
			}
			if instruction.IsKfuncCall() {
				t.Errorf("%s calls a kernel function: %v", name, instruction)
			}
		}
		collection, err := ebpf.NewCollection(spec)
		require.NoError(t, err)
		info, err := collection.Programs[name].Info()
		require.NoError(t, err)
		verified, ok := info.VerifiedInstructions()
		t.Logf("%s: the verifier looked at %d instructions", name, verified)
		if !ok || verified == 0 || verified > mostVerified {
			t.Errorf("%s: the verifier looked at %d instructions", name, verified)
		}
		collection.Close()
	}
}

// BenchmarkAPacket tells what the programs cost, in nanoseconds a packet. What an
// empty one costs in the same run is the test's own part.
func BenchmarkAPacket(b *testing.B) {
	n := newNode(b)
	tenant := guard.MeterTenant{}
	tenant.Price[blue] = price(1e13)
	require.NoError(b, n.maps.Tenants.Put(uint32(team), tenant))
	limited := guard.MeterAllowance{Tenant: team, Price: price(1e13)}
	limited.Share[blue] = price(1e13)
	n.allow(b, two, limited)
	n.allow(b, one, guard.MeterAllowance{Flags: 1})
	newPods := n.newPod(b, guard.MeterAllowance{Flags: guard.SpoofCheck | guard.NewPod})
	empty, err := packettest.NewEmpty()
	require.NoError(b, err)
	defer empty.Close()
	for _, packet := range []struct {
		name    string
		program *ebpf.Program
		frame   []byte
		context skBuff
	}{
		{"empty", empty, whole(peers[true], 1000), skBuff{Ifindex: n.nic}},
		{"meter, a packet of nobody", n.meter, whole(peers[true], 1000), skBuff{Ifindex: n.nic}},
		{"meter, of an endpoint without a limit", n.meter, whole(addressesOf[one][0], 1000), skBuff{Ifindex: n.nic, IngressIfindex: n.ends[one]}},
		{"meter, with three limits", n.meter, whole(addressesOf[two][0], 1000), skBuff{Ifindex: n.nic, IngressIfindex: n.ends[two]}},
		{"meter, with three limits, by address", n.meter, whole(addressesOf[two][0], 1000), skBuff{Ifindex: n.nic}},
		{"own_source, IPv4", n.source, whole(addressesOf[one][0], 1000), skBuff{Ifindex: n.ends[one]}},
		{"unparsable, IPv4", n.unparsable, frameOf(true, func(*packettest.Segment) {}), skBuff{Ifindex: n.ends[one]}},
		{"unparsable, IPv6", n.unparsable, frameOf(false, func(*packettest.Segment) {}), skBuff{Ifindex: n.ends[one]}},
		{"own_source, IPv6", n.source, whole(addressesOf[one][1], 1000), skBuff{Ifindex: n.ends[one]}},
		{"own_source, IPv4, by route", n.source, whole(newPods.own[0], 1000), skBuff{Ifindex: newPods.end}},
		{"own_source, IPv6, by route", n.source, whole(newPods.own[1], 1000), skBuff{Ifindex: newPods.end}},
	} {
		b.Run(packet.name, func(b *testing.B) {
			require.NoError(b, n.Do(func() error {
				_, err := packet.program.Run(&ebpf.RunOptions{Data: packet.frame, Context: packet.context, Repeat: uint32(b.N)})
				return err
			}))
		})
	}
}
