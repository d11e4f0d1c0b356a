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

// piece is less than sending much takes, and two are more.
const piece = uplink.BusyBytes*3/4 + 1

// sendsMuch has the pod send as much as a flow must that is told to the agent, and returns
// where the next segment is. What is between its segments it sent too, for all that they tell.
func (n *node) sendsMuch(t testutil.TB, e ends, sequence uint32) uint32 {
	t.Helper()
	n.ingress(t, green, e.hears(sequence, 0).frame())
	flow := *n.mustFlow(t, e.out())
	flow.CountedSent = flow.Sent // a new slice of time begins
	n.putFlow(t, e.out(), flow)
	for range 2 {
		sequence += piece
		n.goesBy(t, e.sends(sequence-100))
	}
	return sequence
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
		n.goesBy(t, e.sends(sequence+piece))
		require.Nil(t, n.busy(t, e), "it is told more than once in a slice of time")
	})
}

func TestAFlowThatSendsLittleIsNotTold(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows)
		for i := range uint32(5) {
			n.goesBy(t, e.sends(100+i*100))
		}
		require.Nil(t, n.busy(t, e))
	})
}

func TestAFlowTakesTheSharedPathWhenItNextSendsMuchAndItsOwnAfterwards(t *testing.T) {
	n := newNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		n.together(t, e, sharing(red))
		n.requireGoesBy(t, green, e.sends(sequence), "before it sends much again")
		sequence = n.sendsMuch(t, e, sequence+100)
		n.requireGoesBy(t, red, e.sends(sequence), "data")
		n.requireGoesBy(t, red, e.out(), "an acknowledgement")
		n.together(t, e, 0)
		sequence = n.sendsMuch(t, e, sequence+100)
		n.requireGoesBy(t, green, e.sends(sequence), "after the word was taken back")
	})
}

func TestAFlowThatIsForgottenTakesItsOwnPathWhenItNextSendsMuch(t *testing.T) {
	n := newNode(t)
	eachBusy(t, n, func(t *testing.T, e ends, sequence uint32) {
		n.together(t, e, sharing(red))
		sequence = n.sendsMuch(t, e, sequence)
		clearMap[uplink.ToUplinkFlowKey](t, n.maps.BusyFlows)
		n.requireGoesBy(t, red, e.sends(sequence), "with nobody there")
		sequence = n.sendsMuch(t, e, sequence+100)
		n.requireGoesBy(t, green, e.sends(sequence), "data")
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
				n.together(t, e, sharing(red))
				sequence = n.sendsMuch(t, e, sequence)
				n.requireGoesBy(t, red, e.sends(sequence), "at first")
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
		flow.Subtype |= sharing(red)
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
