// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/announcements"
	programs "braid.dev/braid/bpf/pathmanager"
	"braid.dev/braid/internal/mptcpnl"
)

// BenchmarkWhatAShortConnectionCostsWhereTheAgentOpensSubflows has two pods be in turns as without a policy,
// at rest, and listened to, which is when the kernel makes events of each connection of the machine and the
// filter keeps the young ones. Many short turns bear other work on the machine; the processor's time is that of
// both ends together.
func BenchmarkWhatAShortConnectionCostsWhereTheAgentOpensSubflows(b *testing.B) {
	const requests = 50
	l := newAgentLab(b, true, usual, usual)
	ask := asker(b, l.Network)
	time.Sleep(3 * time.Second) // until nobody listens
	rest := l.waits(b)
	modes := []string{"unmanaged", "at-rest", "listened-to"}
	used := map[string][]float64{}
	for b.Loop() {
		rand.Shuffle(len(modes), func(i, j int) { modes[i], modes[j] = modes[j], modes[i] })
		for _, mode := range modes {
			leave := l.beAs(b, mode, rest)
			ask(2)
			before := processorTime()
			ask(requests)
			used[mode] = append(used[mode], float64((processorTime()-before).Nanoseconds())/1000/requests)
			leave()
		}
	}
	for name := range used {
		b.ReportMetric(median(used[name]), name+"-processor-us")
	}
}

// beAs has both pods be as in a mode, and returns how to leave it.
func (l *agentLab) beAs(b *testing.B, mode string, rest []announcements.HoldWait) (leave func()) {
	b.Helper()
	var leaves []func()
	for i, of := range l.options {
		waits, key := of.Watcher.(*Holder).loaded.Value.Waits, uint32(of.Interfaces[0])
		manager, wait := "userspace", rest[i]
		switch mode {
		case "unmanaged":
			manager = "kernel"
			if err := waits.Delete(key); !errors.Is(err, ebpf.ErrKeyNotExist) {
				require.NoError(b, err)
			}
		case "listened-to":
			wait.Tells = announcements.AgentOpens
			leaves = append(leaves, l.listen(b, i))
			fallthrough
		default:
			require.NoError(b, waits.Update(key, &wait, ebpf.UpdateAny))
		}
		require.NoError(b, l.Nodes[i].Pods[0].Do(func() error {
			return os.WriteFile("/proc/sys/net/mptcp/path_manager", []byte(manager), 0o644)
		}))
	}
	return func() {
		for _, leave := range leaves {
			leave()
		}
	}
}

// listen has events be made, as a follower does.
func (l *agentLab) listen(b *testing.B, node int) (leave func()) {
	b.Helper()
	file, err := os.Open(l.Nodes[node].Pods[0].Path())
	require.NoError(b, err)
	subscription, err := mptcpnl.Subscribe(int(file.Fd()))
	require.NoError(b, err)
	var filter programs.YoungObjects
	require.NoError(b, programs.LoadYoungObjects(&filter, nil))
	_, err = subscription.Filter(filter.Young.FD())
	require.NoError(b, err)
	return func() {
		require.NoError(b, subscription.Close())
		require.NoError(b, filter.Close())
		require.NoError(b, file.Close())
	}
}
