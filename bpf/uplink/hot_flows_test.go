// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// hotEntry is a flow's entry of hot_flows, its own or another's.
type hotEntry struct {
	uplink.ToUplinkHotFlow
	index uint32
	isOwn bool
}

func hotIndex(key uplink.ToUplinkFlowKey) uint32 {
	folded := key.Local.Word[3] ^ key.Remote.Word[3] ^ uint32(key.LocalPort) ^ uint32(key.RemotePort)
	return folded * 0x9e3779b1 >> 20 & (uplink.HotFlows - 1)
}

func ports(key uplink.ToUplinkFlowKey) uint32 {
	var both [4]byte
	binary.NativeEndian.PutUint16(both[:], key.LocalPort)
	binary.NativeEndian.PutUint16(both[2:], key.RemotePort)
	return binary.NativeEndian.Uint32(both[:])
}

func (n *node) hotEntry(t testutil.TB, out segment) *hotEntry {
	t.Helper()
	key := flowKey(out)
	e := &hotEntry{index: hotIndex(key)}
	require.NoError(t, n.maps.HotFlows.Lookup(e.index, &e.ToUplinkHotFlow))
	e.isOwn = e.has(e.Ports, ports(key)) && e.has(e.Local, key.Local.Word[3]) && e.has(e.Remote, key.Remote.Word[3])
	for i := range e.LocalFirst {
		if e.Head>>uplink.HotClaim&uplink.HotIPV6 != 0 {
			e.isOwn = e.isOwn && e.has(e.LocalFirst[i], key.Local.Word[i]) && e.has(e.RemoteFirst[i], key.Remote.Word[i])
		}
	}
	return e
}

// has tells whether a word is of the entry's claim, and this.
func (e *hotEntry) has(word uint64, value uint32) bool {
	return word == e.Head>>uplink.HotClaim<<uplink.HotClaim|uint64(value)
}

// addNotes adds to what flows has of a flow what is noted in its entry.
func (e *hotEntry) addNotes(flow *uplink.ToUplinkFlow) {
	if !e.isOwn || e.Gathered == e.Head {
		return
	}
	note := func(word uint64, to *uint32) {
		if word>>uplink.HotClaim == e.Head>>uplink.HotClaim {
			*to = uint32(word)
		}
	}
	slowest := uint32(flow.Slowest)
	note(e.Slowest, &slowest)
	flow.Slowest = uint8(slowest)
	note(e.Sent, &flow.Sent)
	note(e.Received, &flow.Received)
	note(e.Unanswered, &flow.Unanswered)
	note(e.Redirected, &flow.Redirected)
}

// coolDown has a flow's next packets be those of flows again.
func (n *node) coolDown(t testutil.TB, out segment) {
	t.Helper()
	e := n.hotEntry(t, out)
	e.Head = (e.Head>>uplink.HotClaim + uplink.HotNextClaim) << uplink.HotClaim
	put(t, n.maps.HotFlows, e.index, e.ToUplinkHotFlow)
}

// inOneStep runs something at a step of the kernel's timer in which a flow's entry may be used
// before and after it: `heat` makes it so, `then` is what the test is about. What came after
// the step has ended is done once more.
func (n *node) inOneStep(t *testing.T, out segment, heat, then func()) {
	t.Helper()
	for range 200 {
		heat()
		before := n.hotEntry(t, out)
		then()
		if before.isOwn && before.step() == before.asked() && !n.hotEntry(t, out).wasOver(before) {
			return
		}
	}
	t.Fatal("no step of the timer is long enough")
}

// wasOver tells whether a packet since came when the step had ended: it asked flows, or it came
// by at its path's NIC, where a redirected packet does no more than to return the notes.
func (e *hotEntry) wasOver(before *hotEntry) bool {
	return e.Asked != before.Asked || e.Gathered != before.Gathered
}

func (e *hotEntry) step() uint32  { return uint32(e.Head) }
func (e *hotEntry) asked() uint32 { return uint32(e.Asked) }

// heat has a flow send until its entry may be used, and returns the number of the next segment.
func (n *node) heat(t *testing.T, e ends, sequence uint32) uint32 {
	t.Helper()
	for range 3 {
		n.goesBy(t, e.sends(sequence))
		sequence += 100
	}
	return sequence
}

// restore undoes what tests change about paths and preferences.
func (n *node) restore(t *testing.T) {
	t.Helper()
	n.setNode(t, allPaths)
	n.setPeer(t, allPaths)
	n.setHealth(t, uplink.ToUplinkHealth{})
	n.prefer(t, uplink.ToUplinkPreference{})
}

func TestAHotFlowsPacketsNeedNoLookUpOfFlowsAndAreNotedThereLater(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		sequence, sent := uint32(100), uint32(0)
		inFlows := func() uint32 { return lookup[uplink.ToUplinkFlow](t, n.maps.Flows, flowKey(e.out())).Sent }
		n.inOneStep(t, e.out(), func() { sequence = n.heat(t, e, sequence) }, func() {
			sent = inFlows()
			n.requireGoesBy(t, green, e.sends(sequence), "a hot flow's data")
			sequence += 100
		})
		require.Equal(t, sent, inFlows(), "flows was not asked")
		require.Equal(t, mine+sequence, n.mustFlow(t, e.out()).Sent, "it is noted all the same")
		time.Sleep(10 * time.Millisecond)
		n.egress(t, green, e.out().with(func(s *segment) { s.sequence, s.answer = mine+sequence, theirs }).frame())
		require.Equal(t, mine+sequence, inFlows(), "with the first packet after that step")
	})
}

// Each is changed while the flow's entry may be used, and the very next packet obeys.
func TestAHotFlowsNextPacketObeysWhatHasChanged(t *testing.T) {
	n := newNode(t)
	changes := map[string]struct {
		change func(t *testing.T, e ends)
		to     int
	}{
		"its path is down":                  {func(t *testing.T, _ ends) { n.setNode(t, 1<<red) }, red},
		"its path does not reach the peer":  {func(t *testing.T, _ ends) { n.setPeer(t, 1<<red) }, red},
		"no path is left":                   {func(t *testing.T, _ ends) { n.setPeer(t, 0) }, blue},
		"its endpoint prefers another path": {func(t *testing.T, _ ends) { n.prefer(t, preferring(1<<red)) }, red},
		"the preferred path is bad": {func(t *testing.T, _ ends) {
			n.prefer(t, preferring(1<<red))
			n.setHealth(t, uplink.ToUplinkHealth{Bad: [8]uint8{1 << red}})
		}, green},
		"its path is drained": {func(t *testing.T, _ ends) {
			n.prefer(t, uplink.ToUplinkPreference{Allowed: 1 << red, Flags: set})
		}, red},
		"the agent has moved it, and the clock": {func(t *testing.T, e ends) {
			flow := *n.mustFlow(t, e.out())
			flow.Path = red
			put(t, n.maps.Flows, flowKey(e.out()), flow)
			n.setClock(t, lookup[uplink.ToUplinkNode](t, n.maps.Node, uint32(0)).Clock+1)
		}, red},
		"the agent has deleted it, and moved the clock": {func(t *testing.T, e ends) {
			require.NoError(t, n.maps.Flows.Delete(flowKey(e.out())))
			n.setClock(t, lookup[uplink.ToUplinkNode](t, n.maps.Node, uint32(0)).Clock+1)
		}, blue},
	}
	for name, c := range changes {
		t.Run(name, func(t *testing.T) {
			eachRole(t, n, func(t *testing.T, e ends) {
				kept, sequence, by := *n.mustFlow(t, e.out()), uint32(100), 0
				heat := func() {
					n.restore(t)
					kept.Used = 0
					n.putFlow(t, e.out(), kept)
					sequence = n.heat(t, e, sequence)
				}
				n.inOneStep(t, e.out(), heat, func() {
					c.change(t, e)
					s := e.sends(sequence)
					if by = blue; n.egress(t, blue, s.frame()) == redirect {
						by = n.redirectedTo(t, s)
					}
					sequence += 100
				})
				require.Equal(t, pathNames[c.to], pathNames[by])
			})
		})
	}
	n.restore(t)
}

// redirectedTo is the path by which the flow's packet is on its way.
func (n *node) redirectedTo(t *testing.T, s segment) int {
	t.Helper()
	for path := range paths {
		if n.mustFlow(t, s).Redirected == n.nics[path] {
			return path
		}
	}
	t.Fatal("it is on its way nowhere")
	return 0
}

// A word of another claim is another flow's, or was: the packet is one of flows then.
func TestNoEntryIsUsedThatIsHalfAnotherFlows(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, _ ends) {
		n.reset(t)
		e := n.begin(t, endsOf[version], green)
		sequence := uint32(0)
		for name, word := range wordsOfSending(version) {
			t.Run(name, func(t *testing.T) {
				heat := func() {
					n.coolDown(t, e.out())
					sequence = n.heat(t, e, sequence)
				}
				n.inOneStep(t, e.out(), heat, func() {
					entry := n.hotEntry(t, e.out())
					of := word(&entry.ToUplinkHotFlow)
					*of = ^*of&(1<<uplink.HotClaim-1) | (entry.Head>>uplink.HotClaim+uplink.HotNextClaim)<<uplink.HotClaim
					put(t, n.maps.HotFlows, entry.index, entry.ToUplinkHotFlow)
					n.requireGoesBy(t, green, e.sends(sequence), name)
					sequence += 100
				})
				require.Equal(t, mine+sequence, lookup[uplink.ToUplinkFlow](t, n.maps.Flows, flowKey(e.out())).Sent, "it was one of flows")
			})
		}
	})
}

// wordsOfSending are those that a segment with data needs, which leaves.
func wordsOfSending(version int) map[string]func(*uplink.ToUplinkHotFlow) *uint64 {
	words := map[string]func(*uplink.ToUplinkHotFlow) *uint64{
		"ports":      func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Ports },
		"local":      func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Local },
		"remote":     func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Remote },
		"way":        func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Way },
		"choice":     func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Choice },
		"state":      func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.State },
		"used":       func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Used },
		"endpoint":   func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Endpoint },
		"sequence":   func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Sequence },
		"token":      func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Token },
		"from":       func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.From },
		"sent":       func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Sent },
		"unanswered": func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Unanswered },
		"redirected": func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.Redirected },
	}
	for i := range 3 {
		if version == 6 {
			words[fmt.Sprintf("local's word %d", i)] = func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.LocalFirst[i] }
			words[fmt.Sprintf("remote's word %d", i)] = func(e *uplink.ToUplinkHotFlow) *uint64 { return &e.RemoteFirst[i] }
		}
	}
	return words
}

// sharer are the ends of another flow that has the same place in hot_flows.
func sharer(t *testing.T, e ends) ends {
	t.Helper()
	for port := e.pod.Port() + 20; port != 0; port++ {
		if other := e.port(port); hotIndex(flowKey(other.out())) == hotIndex(flowKey(e.out())) {
			return other
		}
	}
	t.Fatal("no port shares the place")
	return e
}

func TestFlowsThatShareAPlaceGoTheirOwnWaysAndEachIsNoted(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		other := sharer(t, e)
		flow := *n.mustFlow(t, e.out())
		flow.Path, flow.Redirected = red, 0
		n.putFlow(t, other.out(), flow)
		sequence := uint32(100)
		for range 20 {
			for range 5 {
				n.requireGoesBy(t, green, e.sends(sequence), "the one")
				n.requireGoesBy(t, red, other.sends(sequence), "the other")
				sequence += 100
			}
			require.Equal(t, mine+sequence, n.mustFlow(t, e.out()).Sent)
			require.Equal(t, mine+sequence, n.mustFlow(t, other.out()).Sent)
			time.Sleep(time.Millisecond)
		}
	})
}

func TestAFlowThatRestsLeavesItsPlaceToAnotherAndItsNotesToFlows(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		other := sharer(t, e)
		n.putFlow(t, other.out(), *n.mustFlow(t, e.out()))
		sequence := uint32(100)
		n.inOneStep(t, e.out(), func() { sequence = n.heat(t, e, sequence) }, func() {
			n.goesBy(t, e.sends(sequence))
			sequence += 100
		})
		time.Sleep(50 * time.Millisecond)
		after := uint32(100)
		n.inOneStep(t, other.out(), func() { after = n.heat(t, other, after) }, func() {})
		require.Equal(t, mine+sequence, lookup[uplink.ToUplinkFlow](t, n.maps.Flows, flowKey(e.out())).Sent)
	})
}

// What is noted of the one before would have the new one's first data be what it repeats.
func TestAConnectionWithAnEarlierOnesPortsBeginsWithNoneOfItsNotes(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, _ ends) {
		n.reset(t)
		e := n.begin(t, endsOf[version], green)
		sequence := uint32(0)
		n.inOneStep(t, e.out(), func() { sequence = n.heat(t, e, sequence) }, func() { sequence = n.heat(t, e, sequence) })
		require.NoError(t, n.maps.Flows.Delete(flowKey(e.out())), "the kernel makes room")
		n.egress(t, blue, e.syn(capable(1)).frame())
		n.isAnswered(t, e, capableWithKey(key))
		require.Less(t, n.mustFlow(t, e.out()).Sent, uint32(mine))
	})
}

// A connection begins with the ends of a hot flow of which nothing is known any more, at once:
// its handshake's packets are not those of that flow.
func TestAHandshakeAfterAHotFlowOfTheSameEndsBeginsAFlow(t *testing.T) {
	n := newNode(t)
	for kind, begin := range kinds {
		t.Run(kind, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				n.reset(t)
				e = begin(n, t, e, green)
				sequence := uint32(0)
				heat := func() {
					if n.countLiving(t) == 0 {
						e = begin(n, t, e, green)
						sequence = 0
					}
					sequence = n.heat(t, e, sequence)
				}
				n.inOneStep(t, e.out(), heat, func() {
					require.NoError(t, n.maps.Flows.Delete(flowKey(e.out())))
					if kind == "the responder" {
						n.isCalled(t, e, green)
						return
					}
					n.egress(t, blue, e.syn(capable(1)).frame())
					n.isAnswered(t, e, capableWithKey(key))
				})
				require.Equal(t, 1, n.countLiving(t))
			})
		})
	}
}

// The node hears nothing on green after what it sent while the flow was hot.
func TestWhatAHotFlowSentLastIsRepeatedByAnotherPath(t *testing.T) {
	n := newSilentNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		sequence := uint32(100)
		n.inOneStep(t, e.out(), func() { sequence = n.heat(t, e, sequence) }, func() {
			n.ingress(t, green, e.hears(sequence, 0).frame()) // all is answered, and then:
			n.goesBy(t, e.sends(sequence))
			sequence += 100
		})
		require.NotZero(t, n.mustFlow(t, e.out()).Unanswered)
		time.Sleep(2 * quiet)
		require.NotEqual(t, green, n.goesBy(t, e.sends(sequence-100)))
	})
}

func TestEachPacketOfAHotFlowIsCounted(t *testing.T) {
	n := newNode(t)
	eachRole(t, n, func(t *testing.T, e ends) {
		n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Share: everyFlow, Flags: set, Account: theAccount})
		flow := *n.mustFlow(t, e.out())
		flow.Endpoint = thePod
		n.putFlow(t, e.out(), flow)
		sequence := uint32(100)
		n.inOneStep(t, e.out(), func() { sequence = n.heat(t, e, sequence); n.ingress(t, green, e.hears(sequence, 10).frame()) }, func() {
			before := n.counted(t, theAccount, green)
			out, in := e.sends(sequence).frame(), e.hears(sequence, 10).frame()
			n.requireGoesBy(t, green, e.sends(sequence), "a hot flow's data")
			n.ingress(t, green, in)
			after := n.counted(t, theAccount, green)
			require.EqualValues(t, len(out), after.SentBytes-before.SentBytes)
			require.EqualValues(t, 1, after.SentPackets-before.SentPackets)
			require.EqualValues(t, len(in), after.ReceivedBytes-before.ReceivedBytes)
			sequence += 100
		})
	})
}

// The responder's flow follows what comes in, and its answers go there at once.
func TestAHotRespondersNextPacketFollowsWhatComesInByAnotherPath(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		e = n.isCalled(t, e, green)
		sequence := uint32(0)
		heat := func() {
			n.ingress(t, green, e.hears(sequence, 10).frame())
			sequence = n.heat(t, e, sequence)
			n.ingress(t, green, e.hears(sequence, 10).frame())
		}
		n.inOneStep(t, e.out(), heat, func() {
			n.ingress(t, red, e.hears(sequence, 10).frame())
			n.requireGoesBy(t, red, e.sends(sequence), "the answer")
			sequence += 100
		})
	})
}
