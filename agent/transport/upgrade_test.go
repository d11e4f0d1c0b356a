// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/transport"
)

// What an agent before had noted at sockets has another layout, and goes with its programs.
func TestAnAgentTakesOverFromOneWhoseSocketsHaveAnotherLayout(t *testing.T) {
	l := newLab(t)
	before := filepath.Join(l.directory, "transport", "v2")
	require.NoError(t, os.MkdirAll(before, 0o700))
	spec, err := transport.LoadTransport()
	require.NoError(t, err)
	for _, name := range []string{transport.TransportMapTransportConversations, transport.TransportMapTransportExchanges, transport.TransportMapTransportSettings} {
		older := spec.Maps[name].Copy()
		older.ValueSize, older.Key, older.Value = older.ValueSize-8, nil, nil
		if older.Type == ebpf.SkStorage {
			older = spec.Maps[transport.TransportMapTransportSockets].Copy()
			older.Name = name
		}
		m, err := ebpf.NewMap(older)
		require.NoError(t, err)
		require.NoError(t, m.Pin(filepath.Join(before, name)))
		require.NoError(t, m.Close())
	}
	l.apply(t, everything())
	if got := optionsOf(t, l.dial(t, "TCP")); got != everythingShown {
		t.Errorf("a new connection has %+v", got)
	}
	if _, err := os.Stat(before); !os.IsNotExist(err) {
		t.Errorf("what the earlier agent pinned is still there: %v", err)
	}
}

// The programs of an upgrade and a rollback go on with what peers have asked for.
func TestWhatPeersAskTheAgentForIsPinnedWhereEarlierAgentsLookForIt(t *testing.T) {
	l := newLab(t)
	l.apply(t, everything())
	for name, m := range map[string]*ebpf.Map{"transport_wishes": l.part.loaded.Value.AgentRequests, "transport_wishers": l.part.loaded.Value.AgentRequestCounts} {
		pinned, err := ebpf.LoadPinnedMap(filepath.Join(l.part.loaded.Directory(), name), nil)
		require.NoError(t, err, name)
		is, err := pinned.Info()
		require.NoError(t, err)
		wanted, err := m.Info()
		require.NoError(t, err)
		wantedID, known := wanted.ID()
		require.True(t, known)
		isID, _ := is.ID()
		require.Equal(t, wantedID, isID, name)
		require.NoError(t, pinned.Close())
	}
}
