// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// sendsMuch has the pod send as much in a slice of time as a flow must that is told to the agent in
// the next one, and returns where the next segment is. What is between its segments it sent too, for
// all that they tell.
func (n *node) sendsMuch(t testutil.TB, e ends, sequence uint32) uint32 {
	t.Helper()
	sequence += uplink.BusyBytes
	n.sends(t, e, sequence, uplink.BusyBytes)
	return sequence + 100
}

// sends has a slice of time end in which the pod sent so many bytes up to this number, and the
// next segment leave in the next one.
func (n *node) sends(t testutil.TB, e ends, sequence, bytes uint32) {
	t.Helper()
	n.goesBy(t, e.sends(sequence-100))
	flow := *n.mustFlow(t, e.out())
	flow.Counted, flow.CountedSent = flow.Counted-1, flow.Sent-bytes
	n.putFlow(t, e.out(), flow)
	n.ingress(t, green, e.hears(sequence, 0).frame())
	n.goesBy(t, e.sends(sequence))
}

// rests has the flow have sent nothing of late, which was counted at this slice of time.
func (n *node) rests(t testutil.TB, e ends, counted uint32) {
	t.Helper()
	flow := *n.mustFlow(t, e.out())
	flow.Counted, flow.CountedSent, flow.Subtype = counted, flow.Sent, flow.Subtype&^uplink.SendsMuch
	n.putFlow(t, e.out(), flow)
	clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows)
}

func (n *node) busy(t testutil.TB, e ends) *uplink.ToUplinkBusyFlow {
	t.Helper()
	return lookup[uplink.ToUplinkBusyFlow](t, n.maps.BusyFlows, flowKey(e.out()))
}

// together has the flow share a path, or no longer.
func (n *node) together(t testutil.TB, e ends, together uint8) {
	t.Helper()
	busy := n.busy(t, e)
	require.NotNil(t, busy, "the flow is not known to send much")
	busy.Together = together
	put(t, n.maps.BusyFlows, flowKey(e.out()), *busy)
}

// sharesRed has the flow, which is on green, share red from its next segment on.
func (n *node) sharesRed(t testutil.TB, e ends, sequence uint32) uint32 {
	t.Helper()
	n.together(t, e, sharing(red))
	sequence = n.sendsMuch(t, e, sequence)
	n.requireGoesBy(t, red, e.sends(sequence), "data")
	return sequence
}

func sharing(path uint8) uint8 { return uplink.Together | path<<uplink.TogetherPath }

// eachBusy gives a flow of either role on green that has sent much.
func eachBusy(t *testing.T, n *node, f func(t *testing.T, e ends, sequence uint32)) {
	eachRole(t, n, func(t *testing.T, e ends) {
		clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows)
		f(t, e, n.sendsMuch(t, e, 100))
	})
}

func TestAFlowThatSendsMuchIsTold(t *testing.T) {
	n := newNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		busy := n.busy(t, e)
		require.NotNil(t, busy, "it is not told")
		require.Equal(t, uint8(green), busy.Path)
		require.Zero(t, busy.Together)
		clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows)
		n.ingress(t, green, e.hears(sequence, 0).frame())
		n.goesBy(t, e.sends(sequence))
		require.Nil(t, n.busy(t, e), "it is told more than once in a slice of time")
	})
}

func TestAFlowThatSendsLittleIsNotTold(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		n.rests(t, e, n.mustFlow(t, e.out()).Counted)
		n.sends(t, e, uplink.BusyBytes, uplink.BusyBytes-uplink.LoadUnit)
		require.Nil(t, n.busy(t, e))
	})
}

// Connections that end within a slice of time cost the agent nothing.
func TestAFlowIsNotToldForWhatItSendsInItsFirstSliceOfTime(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		n.rests(t, e, 0)
		n.goesBy(t, e.sends(uplink.BusyBytes))
		n.ingress(t, green, e.hears(uplink.BusyBytes+100, 0).frame())
		n.goesBy(t, e.sends(uplink.BusyBytes+100))
		require.Nil(t, n.busy(t, e))
		n.sends(t, e, 3*uplink.BusyBytes, uplink.BusyBytes)
		require.NotNil(t, n.busy(t, e), "in its second one")
	})
}

func TestAFlowTakesTheSharedPathInTheNextSliceOfTimeAndItsOwnAfterwards(t *testing.T) {
	n := newNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		n.together(t, e, sharing(red))
		n.requireGoesBy(t, green, e.sends(sequence), "in the same one")
		sequence = n.sendsMuch(t, e, sequence+100)
		n.requireGoesBy(t, red, e.sends(sequence), "data")
		n.requireGoesBy(t, red, e.out(), "an acknowledgement")
		n.together(t, e, 0)
		sequence = n.sendsMuch(t, e, sequence+100)
		n.requireGoesBy(t, green, e.sends(sequence), "after the word was taken back")
	})
}

// The path that it is to leave may be one on which it gets little through, or nothing.
func TestAFlowThatSentMuchTakesTheSharedPathHoweverLittleItSendsNow(t *testing.T) {
	n := newNode(t)
	for name, next := range map[string]func(t *testing.T, e ends, sequence uint32) uint32{
		"where it has answers": func(t *testing.T, e ends, sequence uint32) uint32 {
			n.sends(t, e, sequence+100, 100)
			return sequence + 200
		},
		"where it has none": func(t *testing.T, e ends, sequence uint32) uint32 {
			n.nextSlice(t, e)
			n.requireGoesBy(t, green, e.sends(sequence), "while some may be under way")
			n.nextSlice(t, e)
			return sequence
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
				n.together(t, e, sharing(red))
				n.requireGoesBy(t, red, e.sends(next(t, e, sequence)), "data")
			})
		})
	}
}

func TestAFlowSendsMuchForAsLongAsItSendsAsMuchAgain(t *testing.T) {
	n := newNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		age := func() {
			busy := *n.busy(t, e)
			busy.Slice -= 10
			put(t, n.maps.BusyFlows, flowKey(e.out()), busy)
		}
		age()
		before := n.busy(t, e).Slice
		sequence += uplink.BusyBytes - 300
		n.sends(t, e, sequence, uplink.LoadUnit)
		require.Equal(t, before, n.busy(t, e).Slice, "it has sent less")
		n.sends(t, e, sequence+600, uplink.LoadUnit)
		require.Greater(t, n.busy(t, e).Slice, before, "over several slices of time")
	})
}

func TestAFlowThatIsForgottenAndSendsLittleIsNotNotedAgain(t *testing.T) {
	n := newNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows)
		n.sends(t, e, sequence+100, 100)
		require.Nil(t, n.busy(t, e))
		n.sends(t, e, sequence+300, 100)
		require.Nil(t, n.busy(t, e), "ever")
		n.sendsMuch(t, e, sequence+600)
		require.NotNil(t, n.busy(t, e), "until it sends much")
	})
}

// nextSlice has a slice of time begin in which nothing has come in for the flow.
func (n *node) nextSlice(t testutil.TB, e ends) {
	t.Helper()
	flow := *n.mustFlow(t, e.out())
	flow.Counted--
	n.putFlow(t, e.out(), flow)
}

// It may have to: what it sends on the shared path may be lost, and TCP repeats little at a time.
func TestAFlowLeavesASharedPathWithinASliceOfTimeHoweverLittleItSends(t *testing.T) {
	n := newNode(t)
	for name, end := range map[string]func(t *testing.T, e ends){
		"when the word is taken back": func(t *testing.T, e ends) { n.together(t, e, 0) },
		"when nobody knows of it":     func(t *testing.T, e ends) { clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows) },
	} {
		t.Run(name, func(t *testing.T) {
			eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
				sequence = n.sharesRed(t, e, sequence)
				end(t, e)
				n.nextSlice(t, e)
				n.requireGoesBy(t, green, e.sends(sequence), "repeated data, without an answer")
			})
		})
	}
}

func TestThePathOfAFlowThatSharesOneIsToldHoweverLittleItSends(t *testing.T) {
	n := newNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		sequence = n.sharesRed(t, e, sequence)
		busy := *n.busy(t, e)
		busy.Path = blue
		put(t, n.maps.BusyFlows, flowKey(e.out()), busy)
		n.nextSlice(t, e)
		n.requireGoesBy(t, red, e.sends(sequence), "a segment")
		require.Equal(t, uint8(red), n.busy(t, e).Path)
	})
}

func TestAFlowLeavesASharedPathThatItMayNotUse(t *testing.T) {
	cases := map[string]func(n *node, t *testing.T){
		"its NIC is down":            func(n *node, t *testing.T) { n.setNode(t, 1<<blue|1<<green) },
		"the peer is not up there":   func(n *node, t *testing.T) { n.setPeer(t, 1<<blue|1<<green) },
		"the pod may not use it":     func(n *node, t *testing.T) { n.prefer(t, allowing(1<<blue|1<<green)) },
		"the pod prefers the flow's": func(n *node, t *testing.T) { n.prefer(t, preferring(1<<green)) },
		"it is one for when others are gone": func(n *node, t *testing.T) {
			n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Backup: 1 << red, Share: everyFlow, Flags: set})
		},
	}
	n := newNode(t)
	for name, change := range cases {
		t.Run(name, func(t *testing.T) {
			eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
				sequence = n.sharesRed(t, e, sequence)
				change(n, t)
				n.requireGoesBy(t, green, e.sends(sequence+100), "afterwards")
			})
		})
	}
}

// sharesNothing has the programs be those of a node on which no flows share paths.
func sharesNothing(t testing.TB) func(*ebpf.CollectionSpec) {
	return func(to *ebpf.CollectionSpec) {
		require.NoError(t, to.Variables[uplink.ToUplinkVarMayShare].Set(uint8(0)))
	}
}

func TestOnANodeWithoutSharingNoFlowIsToldAndThoseThatSharedTakeTheirOwnPaths(t *testing.T) {
	n := newNode(t)
	n.load(t, 131072, sharesNothing(t))
	n.reset(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		sequence := n.sendsMuch(t, e, 100)
		require.Nil(t, n.busy(t, e))
		flow := *n.mustFlow(t, e.out())
		flow.Subtype |= uplink.Noted | sharing(red)
		n.putFlow(t, e.out(), flow)
		n.requireGoesBy(t, green, e.sends(sequence), "of a node that no longer has flows share paths")
	})
}

// What the verifier removes costs nothing.
func TestAProgramOfANodeWithoutSharingHasNoCodeForIt(t *testing.T) {
	sizes := map[bool]int{}
	for _, off := range []bool{false, true} {
		spec, err := uplink.LoadToUplink()
		require.NoError(t, err)
		if off {
			sharesNothing(t)(spec)
		}
		collection, err := ebpf.NewCollection(spec)
		require.NoError(t, err)
		defer collection.Close()
		info, err := collection.Programs["to_uplink"].Info()
		require.NoError(t, err)
		sizes[off], err = info.TranslatedSize()
		require.NoError(t, err)
	}
	t.Logf("%d instructions with it, %d without", sizes[false]/asm.InstructionSize, sizes[true]/asm.InstructionSize)
	require.Less(t, sizes[true], sizes[false])
}

func allowing(allowed uint8) uplink.ToUplinkPreference {
	return uplink.ToUplinkPreference{Allowed: allowed, Share: everyFlow, Flags: set}
}

func TestAFlowLeavesASharedPathThatFallsSilent(t *testing.T) {
	n := newSilentNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		n.together(t, e, sharing(red))
		sequence = n.sendsMuch(t, e, sequence)
		n.ingress(t, red, e.hears(sequence, 0).frame())
		n.requireGoesBy(t, red, e.sends(sequence), "data at first")
		time.Sleep(quiet)
		require.NotEqual(t, red, n.goesBy(t, e.sends(sequence)), "what was repeated went the same way")
	})
}
