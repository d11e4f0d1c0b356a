// SPDX-License-Identifier: Apache-2.0

package uplink_test

import (
	"fmt"
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/testutil"
)

// The values of enum preference_flags in maps.h, and of what goes with it.
const (
	set       = 1
	same      = 2
	everyFlow = 256
	classes   = 8
)

// preferring is a preference that all flows follow.
func preferring(preferred uint8) uplink.ToUplinkPreference {
	return uplink.ToUplinkPreference{Allowed: allPaths, Preferred: preferred, Share: everyFlow, Flags: set}
}

// leavesBy is the path by which a segment leaves, or -1 where it passes wherever
// it comes.
func (n *node) leavesBy(t testutil.TB, s segment) int {
	t.Helper()
	var passing []int
	for path := range paths {
		n.arrives(t, s)
		if n.egress(t, path, s.frame()) == next {
			passing = append(passing, path)
		}
	}
	switch len(passing) {
	case 1:
		return passing[0]
	case paths:
		return -1
	}
	t.Fatalf("the segment passes at the paths %v", passing)
	return 0
}

// arrives forgets the packet of the flow that is on its way to another NIC.
func (n *node) arrives(t testutil.TB, s segment) {
	t.Helper()
	if lookup[uplink.ToUplinkFlow](t, n.maps.Flows, flowKey(s)) != nil {
		flow := *n.mustFlow(t, s)
		flow.Redirected = 0
		n.putFlow(t, s, flow)
	}
}

// kinds are the two roles in which the pod's endpoint sends, each with a flow on
// the given path.
var kinds = map[string]func(n *node, t testutil.TB, e ends, path int) ends{
	"the initiator": func(n *node, t testutil.TB, e ends, path int) ends { return n.begin(t, e, uint8(path)) },
	"the responder": func(n *node, t testutil.TB, e ends, path int) ends { return n.isCalled(t, e, path) },
}

func TestAPreferenceMovesLivingFlowsAndItsEndMovesThemBack(t *testing.T) {
	n := newNode(t)
	for kind, begin := range kinds {
		t.Run(kind, func(t *testing.T) {
			forEachVersion(t, func(t *testing.T, version int, e ends) {
				for path := range paths {
					n.reset(t)
					e := begin(n, t, e, path)
					n.egress(t, blue, e.out().frame())
					n.arrives(t, e.out())
					before := *n.mustFlow(t, e.out())
					for preferred := range paths {
						n.prefer(t, preferring(1<<preferred))
						if by := n.leavesBy(t, e.out()); by != preferred {
							t.Errorf("a flow of path %d that prefers %d leaves by %d", path, preferred, by)
						}
					}
					n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Flags: set})
					if by := n.leavesBy(t, e.out()); by != path {
						t.Errorf("after the preference's end a flow of path %d leaves by %d", path, by)
					}
					n.arrives(t, e.out())
					if after := *n.mustFlow(t, e.out()); after != before {
						t.Errorf("the flow was %+v and is %+v", before, after)
					}
				}
			})
		})
	}
}

func TestWhichPathAPacketTakes(t *testing.T) {
	n := newNode(t)
	const own = green // the flow's
	cases := []struct {
		name                             string
		allowed, preferred, backup, dead uint8
		bad                              uint8
		expected                         []int
	}{
		{"no preference", allPaths, 0, 0, 0, 0, []int{green}},
		{"one that is preferred", allPaths, 1 << red, 0, 0, 0, []int{red}},
		{"its own is among those preferred", allPaths, 1<<red | 1<<green, 0, 0, 0, []int{green}},
		{"one of two that are preferred", allPaths, 1<<red | 1<<blue, 0, 0, 0, []int{red, blue}},
		{"the preferred one is dead", allPaths, 1 << red, 0, 1 << red, 0, []int{green}},
		{"one of two preferred is dead", allPaths, 1<<red | 1<<blue, 0, 1 << red, 0, []int{blue}},
		{"the preferred one is given up", allPaths, 1 << red, 0, 0, 1 << red, []int{green}},
		{"one of two preferred is given up", allPaths, 1<<red | 1<<blue, 0, 0, 1 << red, []int{blue}},
		{"the preferred one is given up, and its own dead", allPaths, 1 << red, 0, 1 << green, 1 << red, []int{red, blue}},
		{"another is bad that is not preferred", allPaths, 1 << red, 0, 0, 1<<green | 1<<blue, []int{red}},
		{"what is preferred is no longer allowed", 1<<green | 1<<blue, 1 << red, 0, 0, 0, []int{green}},
		{"its own is no longer allowed", 1<<red | 1<<blue, 0, 0, 0, 0, []int{red, blue}},
		{"nothing is allowed that is alive", 1 << red, 0, 0, 1 << red, 0, []int{-1}},
		{"its own is a backup", allPaths, 0, 1 << green, 0, 0, []int{red, blue}},
		{"all but one are backups", allPaths, 0, 1<<green | 1<<red, 0, 0, []int{blue}},
		{"all but one are backups, and that one is dead", allPaths, 0, 1<<green | 1<<red, 1 << blue, 0, []int{green}},
		{"all are backups", allPaths, 0, allPaths, 0, 0, []int{green}},
		{"preferred and backup, and the preferred is given up", allPaths, 1 << red, 1 << green, 0, 1 << red, []int{blue, red}},
		{"preferred and backup, and only the backup lives", allPaths, 1 << red, 1 << green, 1<<red | 1<<blue, 0, []int{green}},
		{"everything is dead", allPaths, 1 << red, 1 << green, allPaths, 0, []int{-1}},
	}
	for kind, begin := range kinds {
		forEachVersion(t, func(t *testing.T, version int, e ends) {
			for i, c := range cases {
				n.reset(t)
				e := begin(n, t, e.port(50000+16*uint16(i)), own)
				class := uint8(i % classes)
				n.prefer(t, uplink.ToUplinkPreference{Allowed: c.allowed, Preferred: c.preferred, Backup: c.backup, Class: class, Share: everyFlow, Flags: set})
				health := uplink.ToUplinkHealth{Bad: [classes]uint8{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
				health.Bad[class] = c.bad
				n.setHealth(t, health)
				n.setPeer(t, allPaths&^c.dead)
				if by := n.leavesBy(t, e.out()); !slices.Contains(c.expected, by) {
					t.Errorf("%s, %s: leaves by %d instead of %v", kind, c.name, by, c.expected)
				}
			}
		})
	}
}

// An entry that is not set, as an older agent leaves it, changes nothing.
func TestAnUnsetPreferenceIsNone(t *testing.T) {
	n := newNode(t)
	for kind, begin := range kinds {
		forEachVersion(t, func(t *testing.T, version int, e ends) {
			n.reset(t)
			e = begin(n, t, e, green)
			unset := preferring(1 << red)
			unset.Flags, unset.Allowed = 0, 0
			n.prefer(t, unset)
			if by := n.leavesBy(t, e.out()); by != green {
				t.Errorf("%s: leaves by %d", kind, by)
			}
			flow := *n.mustFlow(t, e.out())
			for _, endpoint := range []uint32{0, 4095, 4096, 1 << 31, 1<<32 - 1} {
				flow.Endpoint = endpoint
				n.putFlow(t, e.out(), flow)
				if by := n.leavesBy(t, e.out()); by != green {
					t.Errorf("%s, of endpoint %d: leaves by %d", kind, endpoint, by)
				}
			}
		})
	}
}

// A responder whose pod is no endpoint has nothing to prefer.
func TestAResponderThatIsNoEndpointFollows(t *testing.T) {
	n := newNode(t)
	n.prefer(t, preferring(1<<red))
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		e.pod = addrPort(e.pod.Addr().Next().String(), 80)
		n.ingress(t, green, e.syn(capable(1)).flip().frame())
		if by := n.leavesBy(t, e.answer()); by != green {
			t.Errorf("leaves by %d", by)
		}
	})
}

func TestAShareOfTheFlowsFollowsThePreference(t *testing.T) {
	n := newNode(t)
	const flows = 256
	for _, share := range []uint16{0, 1, 64, 128, 255, everyFlow} {
		n.reset(t)
		preference := preferring(1 << red)
		preference.Share = share
		n.prefer(t, preference)
		onRed := 0
		for turn := range flows {
			e := endsOf[4].port(uint16(1000 + turn))
			n.putFlow(t, e.out(), uplink.ToUplinkFlow{Endpoint: thePod, Role: initiator, Peer: thePeer, Path: green, Allowed: allPaths, Turn: uint8(turn)})
			if n.egress(t, red, e.out().frame()) == next {
				onRed++
			}
		}
		if onRed != int(share) {
			t.Errorf("with a share of %d of 256, red carries %d of %d flows", share, onRed, flows)
		}
	}
}

// Whatever the maps hold, a packet leaves by a path that is up, and by the best
// of those that are.
func TestThePathsOfPacketsAreThoseOfTheRule(t *testing.T) {
	n := newNode(t)
	mask := rapid.Uint8Range(0, allPaths)
	rapid.Check(t, func(t *rapid.T) {
		p := uplink.ToUplinkPreference{
			Allowed: mask.Draw(t, "allowed"), Preferred: mask.Draw(t, "preferred"), Backup: mask.Draw(t, "backup"),
			Class: rapid.Uint8().Draw(t, "class"), Share: rapid.Uint16Range(0, everyFlow).Draw(t, "share"), Flags: set,
		}
		flow := uplink.ToUplinkFlow{
			Endpoint: thePod, Role: initiator, Peer: thePeer, Path: uint8(rapid.IntRange(0, paths-1).Draw(t, "path")),
			Allowed: allPaths, Turn: rapid.Uint8().Draw(t, "turn"),
		}
		up, bad := mask.Draw(t, "up"), mask.Draw(t, "bad")
		n.reset(t)
		n.prefer(t, p)
		health := uplink.ToUplinkHealth{}
		health.Bad[p.Class%classes] = bad
		n.setHealth(t, health)
		n.setPeer(t, up)
		e := endsOf[rapid.SampledFrom(versions).Draw(t, "version")]
		n.putFlow(t, e.out(), flow)
		by, expected := n.leavesBy(t, e.out()), wanted(p, flow, up, bad)
		switch {
		case expected == 0 && by != -1:
			t.Fatalf("leaves by %d where nothing is usable", by)
		case expected>>flow.Path&1 == 1 && by != int(flow.Path):
			t.Fatalf("leaves by %d, away from its path %d without need", by, flow.Path)
		case expected != 0 && (by < 0 || expected>>by&1 == 0):
			t.Fatalf("leaves by %d, wanted %03b", by, expected)
		}
	})
}

// wanted is the rule in Go.
func wanted(p uplink.ToUplinkPreference, flow uplink.ToUplinkFlow, up, bad uint8) uint8 {
	usable := up & p.Allowed
	if preferred := usable & p.Preferred &^ bad; preferred != 0 && uint16(flow.Turn) < p.Share {
		return preferred
	}
	if others := usable &^ p.Backup; others != 0 {
		return others
	}
	return usable
}

func TestNewSubflowsGetABackupPathOnlyWhereThereIsNoOther(t *testing.T) {
	n := newNode(t)
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		n.reset(t)
		n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Backup: 1 << green, Flags: set})
		counts := map[uint8]int{}
		for i := range uint16(6) {
			first, joining := e.port(1000+i).syn(capable(1)), e.port(2000+i).syn(join(token))
			n.egress(t, blue, first.frame())
			n.egress(t, blue, joining.frame())
			counts[n.mustFlow(t, first).Path]++
			counts[n.mustFlow(t, joining).Path]++
		}
		if counts[green] != 0 || counts[blue] != 6 || counts[red] != 6 {
			t.Errorf("by path %v", counts)
		}
		n.setPeer(t, 1<<green)
		alone := e.port(3000).syn(join(token))
		n.egress(t, blue, alone.frame())
		if flow := n.mustFlow(t, alone); flow.Path != green {
			t.Errorf("with the backup path alone, a new subflow is on %d", flow.Path)
		}
	})
}

// A preference lies over the places of subflows and does not change them: when it
// goes, they are spread.
func TestPreferredPathsDoNotDecideWhereSubflowsArePlaced(t *testing.T) {
	n := newNode(t)
	n.prefer(t, preferring(1<<red))
	seen := uint8(0)
	for i := range uint16(3) {
		s := endsOf[4].port(1000 + i).syn(join(token))
		if by := n.leavesBy(t, s); by != red {
			t.Errorf("a SYN leaves by %d", by)
		}
		seen |= 1 << n.mustFlow(t, s).Path
	}
	if bits.OnesCount8(seen) != paths {
		t.Errorf("the subflows are placed on the paths %03b", seen)
	}
}

func TestSubflowsJoinOnTheirFirstOnesPath(t *testing.T) {
	n := newNode(t)
	for first := range paths {
		t.Run(fmt.Sprint("on path ", first), func(t *testing.T) {
			n.reset(t)
			n.prefer(t, uplink.ToUplinkPreference{Allowed: allPaths, Flags: set | same})
			e := n.begin(t, endsOf[4], uint8(first))
			joined := n.mustFlow(t, e.out()).Token
			joinAt := func(port uint16) int {
				s := e.port(port).syn(join(joined))
				n.egress(t, blue, s.frame())
				return int(n.mustFlow(t, s).Path)
			}
			for i := range uint16(4) {
				if path := joinAt(2000 + i); path != first {
					t.Errorf("subflow %d is on path %d", i, path)
				}
			}
			n.setPeer(t, allPaths&^(1<<first))
			if path := joinAt(3000); path == first {
				t.Error("a subflow was placed on a dead path")
			}
			n.setPeer(t, allPaths)
			if path := joinAt(3001); path != first {
				t.Errorf("after the path's return a subflow is on %d", path)
			}
		})
	}
}

func TestPeersThatSubflowsSendToAreNoted(t *testing.T) {
	n := newNode(t)
	active := func() uint8 {
		var peer uplink.ToUplinkPeer
		require.NoError(t, n.maps.Peers.Lookup(uint32(thePeer), &peer))
		return peer.Active
	}
	forEachVersion(t, func(t *testing.T, version int, e ends) {
		for kind, begin := range kinds {
			n.reset(t)
			n.egress(t, blue, e.out().frame())
			if active() != 0 {
				t.Error("a segment of no flow counts")
			}
			e := begin(n, t, e, green)
			n.setPeer(t, allPaths)
			n.ingress(t, green, e.out().flip().frame())
			if active() != 0 {
				t.Errorf("%s: what comes in counts", kind)
			}
			n.egress(t, blue, e.out().frame())
			n.egress(t, green, e.out().frame())
			if active() != 1 {
				t.Errorf("%s: the peer is not noted", kind)
			}
		}
	})
}
