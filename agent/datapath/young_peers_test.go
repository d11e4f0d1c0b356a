// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

func (l *lab) picksUp(t *testing.T, node int) bool {
	t.Helper()
	var value uplink.ToUplinkNode
	require.NoError(t, l.datapaths[node].loaded.Value.maps().Node.Lookup(uint32(0), &value))
	return value.PicksUp == 1
}

// Agents start one after the other, and hear of each other later than of their own pods.
func TestAConnectionThatBeganBeforeItsPeerWasKnownIsSpreadFromThenOn(t *testing.T) {
	for name, overlay := range map[string]network.Overlay{"natively": {}, "in VXLAN": {Outer: 4}} {
		t.Run(name, func(t *testing.T) {
			l := newOverlay(t, overlay)
			all := l.states(t)
			for i := range all {
				all[i].Tunnels = l.findTunnels(t, i)
				alone := all[i]
				alone.Peers = nil
				l.apply(t, i, alone)
			}
			client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
			serve(t, server, 4)
			announce(t, client, server, 4, 3)
			r := start(t, client, server, 4, traffic.Options{Duration: 5 * time.Second, Verify: true})
			r.awaitSubflows(t, 3)
			require.Greater(t, l.sentIn(t, 0, 300*time.Millisecond).share(threePaths[0]), 0.99, "nobody knows of a peer")
			for i := range all {
				l.apply(t, i, all[i])
			}
			testutil.Retry(t, 3*time.Second, func() error {
				sent := l.sentIn(t, 0, 300*time.Millisecond)
				for _, path := range threePaths {
					if sent.share(path) < 0.2 {
						return fmt.Errorf("%s carries %.2f: %v", path, sent.share(path), sent)
					}
				}
				return nil
			})
			require.Len(t, l.awaitSubflows(t, 0, 3), 3)
			require.Len(t, l.awaitSubflows(t, 1, 3), 3)
			require.True(t, r.wait(t).Multipath)
		})
	}
}

func TestFlowsArePickedUpForAWhileAfterAPeerAppears(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	all, alone := l.states(t)[0], l.states(t)[0]
	alone.Peers = nil
	expect := func(state State, picksUp bool, why string) {
		t.Helper()
		l.apply(t, 0, state)
		require.Equal(t, picksUp, l.picksUp(t, 0), why)
	}
	expect(alone, false, "there is no peer")
	expect(all, true, "the peer is new")
	l.datapaths[0].youngPeers.until = time.Now()
	expect(all, false, "the time is over")
	l.reopen(t, 0, Options{})
	expect(all, false, "the agent before knew the peer")

	lost := l.states(t)[0]
	lost.Peers[0].Paths = map[string]PeerPath{}
	expect(lost, false, "no path leads there")
	expect(all, true, "paths lead there again")
}

func TestNothingIsPickedUpForPeersThatWereKnownFromTheBeginning(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	l.applyAll(t)
	require.False(t, l.picksUp(t, 0))
	require.False(t, l.picksUp(t, 1))
}
