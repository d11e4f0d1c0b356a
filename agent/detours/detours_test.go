// SPDX-License-Identifier: Apache-2.0

package detours

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/go-logr/logr/testr"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netns"

	"braid.dev/braid/agent/health"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

// world is a node with two paths to another one, whose pods it reaches by the first.
type world struct {
	*testing.T
	lab         *network.Network
	host, other *network.Node
	peer        paths.Peer
	probed      health.View
	options     Options
}

func newWorld(t *testing.T) *world {
	lab := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	w := &world{T: t, lab: lab, host: lab.Nodes[0], other: lab.Nodes[1]}
	handle, err := netns.GetFromPath(w.host.Path())
	require.NoError(t, err)
	t.Cleanup(func() { handle.Close() })
	opened, err := paths.Open(handle)
	require.NoError(t, err)
	t.Cleanup(func() { opened.Close() })
	w.peer = paths.Peer{Name: w.other.NodeName(), Paths: map[string]paths.PeerPath{}}
	for i, path := range []string{"blue", "green"} {
		address := netip.MustParseAddr(w.other.Address(i, 4))
		w.peer.Addresses = append(w.peer.Addresses, address)
		w.peer.Paths[path] = paths.PeerPath{Addresses: []netip.Addr{address}, Up: true}
	}
	w.options = Options{
		Network: opened, View: func() health.View { return w.probed }, StatePath: t.TempDir(), Notify: func() {}, Log: testr.New(t),
	}
	return w
}

// open is another agent's part.
func (w *world) open() *Detours {
	opened, err := Open(w.options)
	require.NoError(w, err)
	w.Cleanup(func() { opened.Close() })
	return opened
}

func (w *world) apply(to *Detours) {
	found, err := w.options.Network.Resolve(paths.Query{Peers: []paths.Peer{w.peer}, Paths: []v1alpha1.PlanPath{
		{Name: "blue", Interfaces: []v1alpha1.InterfacePattern{"blue"}}, {Name: "green", Interfaces: []v1alpha1.InterfacePattern{"green"}},
	}})
	require.NoError(w, err)
	m := &node.Model{Peers: []node.Peer{{Peer: w.peer}}}
	for _, path := range found.Paths {
		m.Paths = append(m.Paths, node.Path{Name: path.Name, Interface: path.Index, Up: path.Usable, Found: path})
	}
	report := to.Apply(w.Context(), m)
	require.True(w, report.Done())
}

func (w *world) table() string {
	out, err := w.host.Run("ip", "route", "show", "table", "all", "proto", "177")
	require.NoError(w, err)
	return strings.TrimSpace(out)
}

// A model whose path has lost its carrier gives the routes to the peer's pods another
// way; Remove takes that back, also where another agent made it.
func TestDetoursFollowTheModelAndAreRemoved(t *testing.T) {
	w := newWorld(t)
	first := w.open()
	w.apply(first)
	require.Empty(t, w.table(), "detours while all is well")
	for _, step := range []struct {
		path   string
		sample health.Sample
		detour bool
		when   string
	}{
		{"blue", health.Sample{State: health.Dead}, false, "while probes call the usual path dead, and the kernel does not"},
		{"blue", health.Sample{State: health.Dead, Lost: true}, true, "while the usual path is lost"},
		{"green", health.Sample{State: health.Dead, Lost: true}, false, "while both are lost"},
		{"green", health.Sample{State: health.Alive}, true, "while one is lost"},
		{"blue", health.Sample{State: health.Alive}, false, "when all is well again"},
	} {
		w.probed.Set(w.peer.Name, step.path, step.sample)
		w.apply(first)
		require.Equal(t, step.detour, strings.Contains(w.table(), "dev green"), "%s: %s", step.when, w.table())
	}
	require.NoError(t, w.lab.SetCarrier(w.host, "blue", false))
	w.apply(first)
	require.Contains(t, w.table(), "dev green", "the way to the pods of "+w.peer.Name)
	require.FileExists(t, filepath.Join(w.options.StatePath, FileName))
	report := first.Apply(t.Context(), &node.Model{})
	require.True(t, report.Done())
	require.NoFileExists(t, filepath.Join(w.options.StatePath, FileName), "without paths")
	w.apply(first)
	require.Contains(t, w.table(), "dev green")

	require.NoError(t, w.open().Remove(t.Context()))
	require.Empty(t, w.table(), "after the removal")
	require.NoFileExists(t, filepath.Join(w.options.StatePath, FileName))
}

// The kernel drops the routes of a NIC that is set down: who starts afterwards sees none.
func TestANICThatIsSetDownWhileNoAgentRunsGetsItsDetour(t *testing.T) {
	w := newWorld(t)
	first := w.open()
	w.apply(first)
	require.NoError(t, first.Close())
	_, err := w.host.Run("ip", "link", "set", "blue", "down")
	require.NoError(t, err)
	w.apply(w.open())
	require.Contains(t, w.table(), "dev green")
}

func TestWhatTheLastAgentCalledLostIsSoUntilProbesSayMore(t *testing.T) {
	w := newWorld(t)
	first := w.open()
	w.probed.Set(w.peer.Name, "blue", health.Sample{State: health.Dead, Lost: true})
	w.apply(first)
	require.Contains(t, w.table(), "dev green")
	require.NoError(t, first.Close())

	w.probed = health.View{}
	second := w.open()
	w.apply(second)
	require.Contains(t, w.table(), "dev green", "before the first probes")
	w.probed.Set(w.peer.Name, "blue", health.Sample{State: health.Alive})
	w.apply(second)
	require.Empty(t, w.table(), "once it answers")
}

// Nothing else may have the model applied once more when its word counts no longer.
func TestTheLastAgentsWordEndsInTime(t *testing.T) {
	w := newWorld(t)
	again := make(chan struct{}, 1)
	w.options.Notify = func() { again <- struct{}{} }
	w.probed.Set(w.peer.Name, "blue", health.Sample{State: health.Dead, Lost: true})
	w.apply(w.open())
	w.probed = health.View{}
	second := w.open()
	w.apply(second)
	require.Contains(t, w.table(), "dev green")
	select {
	case <-again:
	case <-time.After(time.Minute):
		t.Fatal("nobody was told")
	}
	w.apply(second)
	require.Empty(t, w.table())
}

func TestARecordThatCannotBeReadIsToldAndReplaced(t *testing.T) {
	w := newWorld(t)
	path := filepath.Join(w.options.StatePath, FileName)
	require.NoError(t, os.WriteFile(path, []byte(`{"routes": [{"dest`), 0o600))
	var told strings.Builder
	w.options.Log = funcr.New(func(_, args string) { told.WriteString(args) }, funcr.Options{})
	w.apply(w.open())
	require.Contains(t, told.String(), "failed to read which routes the last agent knew")
	left, err := (&record{path: path}).read()
	require.NoError(t, err)
	require.NotEmpty(t, left.Routes)
}

// A disk that is full is told of once, and the agent goes on.
func TestARecordThatCannotBeWrittenIsToldOnce(t *testing.T) {
	w := newWorld(t)
	require.NoError(t, os.Symlink("/dev/full", filepath.Join(w.options.StatePath, FileName+".new")))
	var told []string
	w.options.Log = funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{})
	opened := w.open()
	w.apply(opened)
	w.apply(opened)
	require.Len(t, told, 1)
	require.Contains(t, told[0], "failed to keep the node's routes for the next agent")
	require.Contains(t, told[0], "no space left on device")
}

// What a node of a large cluster does each round while nothing changes.
func BenchmarkRecord(b *testing.B) {
	left := func() (all paths.Handover) {
		for i := range 5000 {
			hops := []paths.HandoverHop{{Gateway: netip.MustParseAddr("192.0.2.1"), Index: 2}}
			destination := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
			all.Routes = append(all.Routes, paths.HandoverRoute{Destination: destination, Peer: "other", Hops: hops})
		}
		return all
	}
	r, same := recordIn(b.TempDir()), left()
	require.NoError(b, r.write(left()))
	for b.Loop() {
		if err := r.write(same); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"routes":[{"destination":"10.0.2.0/24","peer":"b","hops":[{"gateway":"192.0.2.1","index":3}],"missing":true}],"lost":{"b":{"blue":true}}}`))
	f.Add([]byte(`{"routes":[{"destination":"fd00::/64","peer":"b","hops":[{"index":3}],"end":true}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		left, err := decode(data)
		if err != nil {
			return
		}
		written, err := json.Marshal(left)
		require.NoError(t, err)
		read, err := decode(written)
		require.NoError(t, err)
		again, err := json.Marshal(read)
		require.NoError(t, err)
		require.Equal(t, string(written), string(again))
	})
}
