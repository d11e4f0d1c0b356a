// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// inDirections runs a test with a connection of three subflows that sends one way
// or the other. Bytes are verified; none may be lost, and no subflow may end.
func inDirections(t *testing.T, l *lab, do func(t *testing.T, sender int)) {
	t.Helper()
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	for sender, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		t.Run(string(direction), func(t *testing.T) {
			l.applyAll(t)
			r := start(t, client, server, 4, traffic.Options{Direction: direction, Duration: untilEnded, Verify: true})
			r.at(300 * time.Millisecond)
			before := byEnds(l.awaitSubflows(t, 0, 3))
			do(t, sender)
			after := byEnds(living(l.flows(t, 0)))
			if result := r.end(t); result.Subflows != 3 || !result.Multipath {
				t.Errorf("at the end there were %d subflows, multipath %t", result.Subflows, result.Multipath)
			}
			if !maps.Equal(before, after) {
				t.Errorf("the subflows were%s\nand are%s", describeEnds(before), describeEnds(after))
			}
		})
	}
}

// most is how much of the bytes counts as all: acknowledgements and the lab's own
// packets are few.
const most = 0.95

// movesTo waits until a node sends everything by these paths, and by each of them.
func (l *lab) movesTo(t *testing.T, what string, node int, paths ...string) {
	t.Helper()
	began := time.Now()
	var sent counted
	for time.Since(began) < time.Second {
		sent = l.sentIn(t, node, 50*time.Millisecond)
		if isSpreadOver(sent, paths) {
			t.Logf("%s: within %s", what, time.Since(began).Round(time.Millisecond))
			return
		}
	}
	t.Fatalf("%s: node %d sends %v instead of by %v", what, node+1, sent, paths)
}

func isSpreadOver(sent counted, paths []string) bool {
	all := 0.
	for _, path := range paths {
		share := sent.share(path)
		if share < 0.5/float64(len(paths)) {
			return false
		}
		all += share
	}
	return all > most
}

// staysOn checks that a node sends everything by these paths for a while.
func (l *lab) staysOn(t *testing.T, what string, node int, paths ...string) {
	t.Helper()
	if sent := l.sentIn(t, node, 300*time.Millisecond); !isSpreadOver(sent, paths) {
		t.Errorf("%s: node %d sends %v instead of by %v", what, node+1, sent, paths)
	}
}

// receivesBy waits until a node says so of all its flows.
func (l *lab) receivesBy(t *testing.T, node int, path string) {
	t.Helper()
	testutil.Eventually(t, 2*time.Second, "what comes in comes by "+path, func() bool {
		flows := l.flows(t, node)
		return len(flows) > 0 && !slices.ContainsFunc(flows, func(flow Flow) bool { return !flow.Ended && flow.Incoming != path })
	})
}

// setEndpoint changes the endpoint of a node's first pod.
func (l *lab) setEndpoint(t *testing.T, node int, change func(*Endpoint)) {
	t.Helper()
	state := l.states(t)[node]
	change(&state.Endpoints[0])
	l.apply(t, node, state)
}

func prefer(paths ...v1alpha1.PathName) func(*Endpoint) {
	return func(endpoint *Endpoint) { endpoint.Preferred = paths }
}

func keepBack(paths ...v1alpha1.PathName) func(*Endpoint) {
	return func(endpoint *Endpoint) { endpoint.Backup = paths }
}

// setHealth says the same of the paths between all nodes.
func (l *lab) setHealth(t *testing.T, health PeerHealth) {
	t.Helper()
	for i, node := range l.Nodes {
		require.NoError(t, l.datapaths[1-i].SetHealth(map[string]PeerHealth{node.NodeName(): health}))
	}
}

func TestLivingConnectionsMoveToWhatTheirPodPrefersAndBack(t *testing.T) {
	t.Parallel()
	l, _, _ := newPair(t, Options{})
	inDirections(t, l, func(t *testing.T, sender int) {
		for _, path := range []v1alpha1.PathName{"green", "blue"} {
			l.setEndpoint(t, 0, prefer(path))
			l.movesTo(t, "to the preferred path", sender, string(path))
			l.staysOn(t, "on the preferred path", sender, string(path))
		}
		l.setEndpoint(t, 0, prefer("red", "blue"))
		l.movesTo(t, "to two preferred paths", sender, "red", "blue")
		l.setEndpoint(t, 0, prefer())
		l.movesTo(t, "back", sender, threePaths...)
	})
}

func TestNewConnectionsBeginOnWhatTheirPodPrefers(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	l.setEndpoint(t, 0, prefer("red"))
	for _, direction := range []traffic.Direction{traffic.Up, traffic.Down} {
		for node := range l.Nodes {
			sent := l.sent(t, node, func() {
				transfer(t, client, server, 4, traffic.Options{Connections: 3, Direction: direction, Duration: 400 * time.Millisecond})
			})
			if !isSpreadOver(sent, []string{"red"}) {
				t.Errorf("%s: node %d sent %v", direction, node+1, sent)
			}
		}
	}
}

func TestTheServersPodPrefersPathsForWhatItSends(t *testing.T) {
	t.Parallel()
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	for direction, expected := range map[traffic.Direction][]string{traffic.Up: threePaths, traffic.Down: {"green"}} {
		r := start(t, client, server, 4, traffic.Options{Direction: direction, Duration: untilEnded, Verify: true})
		r.at(300 * time.Millisecond)
		l.awaitSubflows(t, 1, 3)
		l.setEndpoint(t, 1, prefer("green"))
		l.movesTo(t, "what the server's node sends", 1, "green")
		if direction == traffic.Up {
			l.movesTo(t, "what the client's node sends", 0, expected...)
		} else {
			l.receivesBy(t, 0, "green")
		}
		l.setEndpoint(t, 1, prefer())
		l.movesTo(t, "back", 1, threePaths...)
		r.end(t)
	}
}

// A pod that becomes an endpoint may have answered others before.
func TestAServersFlowsFromBeforeItsPolicyHeedIt(t *testing.T) {
	l, client, server := newPair(t, Options{})
	states := l.states(t)
	l.apply(t, 0, states[0])
	endpoints := states[1].Endpoints
	states[1].Endpoints = nil
	l.apply(t, 1, states[1])
	r := start(t, client, server, 4, traffic.Options{Direction: traffic.Down, Duration: untilEnded, Verify: true})
	r.at(300 * time.Millisecond)
	l.awaitSubflows(t, 1, 3)
	states[1].Endpoints = endpoints
	states[1].Endpoints[0].Preferred = []v1alpha1.PathName{"red"}
	l.apply(t, 1, states[1])
	l.movesTo(t, "to the preferred path", 1, "red")
	r.end(t)
}

// Probes find what no carrier tells: frames are lost, and the NICs stay up.
func TestADeadPathIsLeftAndReturnedTo(t *testing.T) {
	t.Parallel()
	l, _, _ := newPair(t, Options{})
	inDirections(t, l, func(t *testing.T, sender int) {
		require.NoError(t, l.Block(l.Nodes[1], "green", true))
		l.setHealth(t, PeerHealth{Dead: map[string]bool{"green": true}})
		l.movesTo(t, "off the dead path", sender, "blue", "red")
		l.setEndpoint(t, 0, prefer("green", "red"))
		l.movesTo(t, "to the preferred path that lives", sender, "red")
		require.NoError(t, l.Block(l.Nodes[1], "green", false))
		l.setHealth(t, PeerHealth{})
		l.answerProbes(t, "green")
		l.movesTo(t, "to both preferred paths", sender, "green", "red")
		l.setEndpoint(t, 0, prefer())
		l.movesTo(t, "back", sender, threePaths...)
	})
}

func TestAPreferredPathIsGivenUpWhileItIsBadForItsClass(t *testing.T) {
	t.Parallel()
	l, _, _ := newPair(t, Options{})
	inDirections(t, l, func(t *testing.T, sender int) {
		bad, good := map[string]bool{"green": false, "blue": true, "red": true}, map[string]bool{"green": true}
		l.setHealth(t, PeerHealth{Good: []map[string]bool{bad, good}})
		l.setEndpoint(t, 0, func(endpoint *Endpoint) { endpoint.Preferred, endpoint.Class = []v1alpha1.PathName{"green"}, 1 })
		l.movesTo(t, "to the path that is good for its class", sender, "green")
		l.setHealth(t, PeerHealth{Good: []map[string]bool{good, bad}})
		l.movesTo(t, "to all paths", sender, threePaths...)
		l.setHealth(t, PeerHealth{})
		l.movesTo(t, "back to the preferred one", sender, "green")
	})
}

func TestBackupPathsCarryTrafficOnlyWhileTheOthersAreGone(t *testing.T) {
	t.Parallel()
	l, client, server := newPair(t, Options{})
	inDirections(t, l, func(t *testing.T, sender int) {
		l.setEndpoint(t, 0, keepBack("red"))
		l.movesTo(t, "off the backup path", sender, "blue", "green")
		l.setHealth(t, PeerHealth{Dead: map[string]bool{"green": true}})
		l.movesTo(t, "to what is left", sender, "blue")
		l.setHealth(t, PeerHealth{Dead: map[string]bool{"green": true, "blue": true}})
		l.movesTo(t, "to the backup path", sender, "red")
		l.setHealth(t, PeerHealth{})
		l.movesTo(t, "back", sender, "blue", "green")
	})
	later := start(t, client, server, 4, traffic.Options{Connections: 2, Duration: untilEnded})
	if counts := pathCounts(l.awaitSubflows(t, 0, 6)); counts["red"] != 0 {
		t.Errorf("new subflows by path: %v", counts)
	}
	later.end(t)
}

// Health that calls every path dead says nothing about which of them works.
func TestWhereEveryPathIsCalledDeadAllAreUsed(t *testing.T) {
	t.Parallel()
	l, _, _ := newPair(t, Options{})
	inDirections(t, l, func(t *testing.T, sender int) {
		l.setHealth(t, PeerHealth{Dead: map[string]bool{"blue": true, "green": true, "red": true}})
		l.staysOn(t, "with all paths dead", sender, threePaths...)
		l.setHealth(t, PeerHealth{})
	})
}

func TestPathsThatAreNoLongerAllowedAreLeft(t *testing.T) {
	t.Parallel()
	l, _, _ := newPair(t, Options{})
	for node := range l.Nodes {
		t.Run(l.Nodes[node].NodeName(), func(t *testing.T) {
			inDirections(t, l, func(t *testing.T, sender int) {
				l.setEndpoint(t, node, func(endpoint *Endpoint) { endpoint.Paths = endpoint.Paths[1:] })
				if sender == node {
					l.movesTo(t, "to the allowed paths", sender, "green", "red")
				}
				l.applyAll(t)
				l.movesTo(t, "back", sender, threePaths...)
			})
		})
	}
}

func TestAllSubflowsOfAConnectionAreOnOnePath(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	l.setEndpoint(t, 0, func(endpoint *Endpoint) { endpoint.SamePath = true })
	r := start(t, client, server, 4, traffic.Options{Connections: 6, Duration: untilEnded})
	flows := l.awaitSubflows(t, 0, 18)
	r.end(t)
	byToken := map[uint32]map[string]int{}
	for _, flow := range flows {
		if byToken[flow.Token] == nil {
			byToken[flow.Token] = map[string]int{}
		}
		byToken[flow.Token][flow.Path]++
	}
	for token, counts := range byToken {
		if len(counts) != 1 {
			t.Errorf("the subflows of connection %08x by path: %v", token, counts)
		}
	}
	if counts := pathCounts(flows); !maps.Equal(counts, map[string]int{"blue": 6, "green": 6, "red": 6}) {
		t.Errorf("the subflows of six connections by path: %v", counts)
	}
}

func TestANewAgentKeepsWhatWasKnownUntilItKnowsMore(t *testing.T) {
	l, _, _ := newPair(t, Options{})
	inDirections(t, l, func(t *testing.T, sender int) {
		bad := []map[string]bool{{"red": false}}
		l.setEndpoint(t, 0, prefer("red"))
		l.setHealth(t, PeerHealth{Dead: map[string]bool{"green": true}, Good: bad})
		l.movesTo(t, "off the dead path and the bad one", sender, "blue", "red")
		for node := range l.Nodes {
			l.reopen(t, node, Options{})
		}
		l.applyAll(t)
		l.setEndpoint(t, 0, prefer("red"))
		l.staysOn(t, "after the restart", sender, "blue", "red")
		l.setHealth(t, PeerHealth{})
		l.movesTo(t, "to the preferred path", sender, "red")
	})
}

func TestPeersWithTrafficAreActive(t *testing.T) {
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	expect := func(what string, expected bool) {
		t.Helper()
		for i, node := range l.Nodes {
			active, err := l.datapaths[1-i].ActivePeers()
			require.NoError(t, err)
			if active[node.NodeName()] != expected || len(active) > 1 {
				t.Errorf("%s: the peers of node %d that are active: %v", what, 2-i, active)
			}
		}
	}
	expect("before any", false)
	r := start(t, client, server, 4, traffic.Options{Duration: 700 * time.Millisecond})
	r.at(100 * time.Millisecond)
	expect("at the beginning", true)
	r.at(300 * time.Millisecond)
	expect("while it goes on", true)
	r.wait(t)
	expect("at the end", true)
	time.Sleep(50 * time.Millisecond)
	_, _ = l.datapaths[0].ActivePeers()
	_, _ = l.datapaths[1].ActivePeers()
	expect("afterwards", false)
}

// What is told while Apply is at work is neither lost nor a race.
func TestHealthIsToldAtAnyTime(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	states := l.states(t)
	require.NoError(t, l.datapaths[0].SetHealth(map[string]PeerHealth{l.Nodes[1].NodeName(): {Dead: map[string]bool{"red": true}}}))
	if active, err := l.datapaths[0].ActivePeers(); err != nil || len(active) > 0 {
		t.Errorf("before anything is loaded: %v, %v", active, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200 {
			dead := map[string]bool{"blue": i%2 == 0, "green": true}
			if err := l.datapaths[0].SetHealth(map[string]PeerHealth{l.Nodes[1].NodeName(): {Dead: dead}}); err != nil {
				t.Error(err)
			}
			if _, err := l.datapaths[0].ActivePeers(); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 10 {
		l.apply(t, 0, states[0])
	}
	<-done
	if paths := l.peerPaths(t, 0, l.Nodes[1]); !maps.Equal(paths, map[string]bool{"blue": true, "red": true}) {
		t.Errorf("the peer's paths are %v", paths)
	}
	l.apply(t, 0, states[0])
	if paths := l.peerPaths(t, 0, l.Nodes[1]); !maps.Equal(paths, map[string]bool{"blue": true, "red": true}) {
		t.Errorf("after another Apply the peer's paths are %v", paths)
	}
}

// peerPaths are the paths that the programs of a node may use to a peer.
func (l *lab) peerPaths(t *testing.T, node int, peer *network.Node) map[string]bool {
	t.Helper()
	table := &l.datapaths[node].peers
	paths := map[string]bool{}
	for path, slot := range table.paths {
		if table.entries[peer.NodeName()].written.Ipv4Paths>>slot&1 == 1 {
			paths[path] = true
		}
	}
	return paths
}
