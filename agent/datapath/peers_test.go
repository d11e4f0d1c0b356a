// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/traffic"
)

// manyPeers are other nodes on all paths, none of which is there. Their links are down,
// so that the kernel asks for none of their addresses.
func (l *lab) manyPeers(count int) (peers []Peer) {
	for i := range count {
		peer := Peer{Name: fmt.Sprintf("other-%05d", i), Paths: map[string]PeerPath{}}
		for p, path := range l.Spec.Paths {
			low := [2]byte{byte(i >> 8), byte(i)}
			addresses := []netip.Addr{
				netip.AddrFrom4([4]byte{100, byte(64 + p), low[0], low[1]}),
				netip.AddrFrom16([16]byte{0: 0xfd, 1: 0xee, 2: byte(p), 14: low[0], 15: low[1]}),
			}
			peer.Addresses = append(peer.Addresses, addresses...)
			peer.Paths[path] = PeerPath{Addresses: addresses}
		}
		peers = append(peers, peer)
	}
	return peers
}

// round applies a state with a model of its own, as the agent's loop does, and logs what
// that cost.
func (l *lab) round(t *testing.T, what string, state State) (unsteered int) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	begun := time.Now()
	model, err := state.Model(l.builders[0])
	require.NoError(t, err)
	built := time.Since(begun)
	l.apply(t, 0, state)
	took := time.Since(begun)
	runtime.ReadMemStats(&after)
	runtime.GC()
	var kept runtime.MemStats
	runtime.ReadMemStats(&kept)
	t.Logf("%s: %s, of these the model, which is made twice, %s; %d MiB allocated, %d MiB kept", what, took.Round(time.Millisecond),
		2*built.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, (int64(kept.HeapAlloc)-int64(before.HeapAlloc))>>20)
	return model.Unsteered
}

// The maps grow with the cluster, and connections go on meanwhile. Beyond their limit, the
// peers that have a number are steered to as before.
func TestMorePeersThanTheMapsCanHold(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	l.applyAll(t)
	state := l.states(t)[0]
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	serve(t, server, 4)
	announce(t, client, server, 4, 3)
	r := start(t, client, server, 4, traffic.Options{Duration: 15 * time.Second, Verify: true})
	r.awaitSubflows(t, 3)
	before := byEnds(l.awaitSubflows(t, 0, 3))
	sizes := func() [3]uint32 {
		maps := l.datapaths[0].loaded.Value.maps()
		return [3]uint32{maps.Peers.MaxEntries(), maps.Health.MaxEntries(), maps.PeerAddresses.MaxEntries()}
	}
	require.Equal(t, [3]uint32{fewestPeers, fewestPeers, fewestPeers * uplink.PeerAddresses}, sizes())
	steps := []struct {
		peers, unsteered int
		room             uint32
	}{{1100, 0, 2048}, {16383, 0, 16384}, {16999, 616, 16384}, {16999, 616, 16384}, {100, 0, 16384}}
	for _, step := range steps {
		state.Peers = append(l.states(t)[0].Peers, l.manyPeers(step.peers)...)
		if unsteered := l.round(t, fmt.Sprint(1+step.peers, " peers"), state); unsteered != step.unsteered {
			t.Errorf("of %d peers %d are not steered to", 1+step.peers, unsteered)
		}
		require.Equal(t, [3]uint32{step.room, step.room, step.room * uplink.PeerAddresses}, sizes())
		if after := byEnds(l.awaitSubflows(t, 0, 3)); len(after) != 3 || describeEnds(after) != describeEnds(before) {
			t.Errorf("with %d peers the flows were%s\nand are%s", 1+step.peers, describeEnds(before), describeEnds(after))
		}
		for _, path := range threePaths {
			l.expectAttached(t, 0, path, 1)
		}
	}
	r.wait(t)
}

func TestAddressesOfPeersBeyondTheRoomAreLeftOut(t *testing.T) {
	l := newLab(t, []string{"blue"}, 1, Options{})
	d := l.datapaths[0]
	d.room = 1
	state := l.states(t)[0]
	for i := range byte(40) {
		state.Peers[0].Addresses = append(state.Peers[0].Addresses, netip.AddrFrom4([4]byte{100, 64, 0, i}))
	}
	model, err := state.Model(l.builders[0])
	require.NoError(t, err)
	if taken := d.peerAddresses(model); len(taken) != uplink.PeerAddresses {
		t.Errorf("%d addresses are taken", len(taken))
	}
}
