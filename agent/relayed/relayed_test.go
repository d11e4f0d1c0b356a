// SPDX-License-Identifier: Apache-2.0

package relayed

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/node/nodetest"
	"braid.dev/braid/api/v1alpha1"
	programs "braid.dev/braid/bpf/proxy"
	"braid.dev/braid/internal/lab/network"
	list "braid.dev/braid/internal/relayed"
	"braid.dev/braid/internal/testutil"
)

// lab is a node with one pod.
type lab struct {
	*network.Namespace
	part      *Part
	builder   *node.Builder
	directory string
	index     int
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{Namespace: network.NamespaceForTest(t), builder: nodetest.NewBuilder(testutil.BPFFS(t)), directory: t.TempDir()}
	t.Cleanup(func() { require.NoError(t, l.builder.Close()) })
	pod := network.NamespaceForTest(t)
	require.NoError(t, network.Connect(l.Namespace, "pod", pod, "eth0", network.Options{}))
	var err error
	l.index, err = l.Index("pod")
	require.NoError(t, err)
	l.part = New(l.directory, nil, testr.New(t))
	return l
}

var proxied = &v1alpha1.PlanProxy{Subflows: v1alpha1.PlanSubflows{Manager: v1alpha1.SubflowManagerAgent, Count: 3}}

// apply says what the pod's status waits for.
func (l *lab) apply(t *testing.T, wanted *v1alpha1.PlanProxy) (pending error) {
	t.Helper()
	state := nodetest.State{Endpoints: []nodetest.Endpoint{{
		UID: "pod", Namespace: "shop", Name: "web", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.2")}, Interface: l.index, Proxy: wanted,
	}}}
	require.NoError(t, l.Do(func() error {
		model, err := state.Model(l.builder)
		require.NoError(t, err)
		report := l.part.Apply(t.Context(), model)
		pending = report.Endpoints["pod"].Pending
		return report.Err
	}))
	return pending
}

// attach puts a program of this name there, and returns what takes it off.
func (l *lab) attach(t *testing.T, name string, index int) func() error {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	var attached link.Link
	require.NoError(t, l.Do(func() (err error) {
		attached, err = link.AttachTCX(link.TCXOptions{Interface: index, Program: program, Attach: ebpf.AttachTCXIngress})
		return err
	}))
	t.Cleanup(func() { attached.Close() })
	return attached.Close
}

func TestAnEndpointWaitsForAProxyThatRelaysIt(t *testing.T) {
	l := newLab(t)
	require.NoError(t, l.apply(t, nil))
	require.ErrorIs(t, l.apply(t, proxied), ErrNotRelayed)
	l.attach(t, "another", l.index)
	require.ErrorIs(t, l.apply(t, proxied), ErrNotRelayed)
	detach := l.attach(t, program, l.index)
	require.NoError(t, l.apply(t, proxied))
	require.NoError(t, l.Do(func() error { require.False(t, l.part.hasChanged()); return nil }))
	require.NoError(t, detach())
	require.NoError(t, l.Do(func() error { require.True(t, l.part.hasChanged()); return nil }))
	require.ErrorIs(t, l.apply(t, proxied), ErrNotRelayed)
}

func TestTheProxyIsToldWhomToRelay(t *testing.T) {
	l := newLab(t)
	_ = l.apply(t, proxied)
	told, err := list.Read(l.directory)
	require.NoError(t, err)
	require.Equal(t, []list.Endpoint{{
		Interface: l.index, Name: "shop/web", Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.2")}, Subflows: proxied.Subflows,
	}}, told)
	require.NoError(t, l.part.Close())
	require.FileExists(t, filepath.Join(l.directory, list.FileName))
	require.NoError(t, l.apply(t, nil))
	require.NoFileExists(t, filepath.Join(l.directory, list.FileName))
	_ = l.apply(t, proxied)
	require.NoError(t, l.Do(func() error { return l.part.Remove(t.Context()) }))
	left, err := os.ReadDir(l.directory)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestInterfacesOfADeadProxyAreRemovedAtTheSecondLook(t *testing.T) {
	l := newLab(t)
	names := func() (found []string) {
		require.NoError(t, l.Do(func() error {
			devices, err := netlink.LinkList()
			for _, device := range devices {
				found = append(found, device.Attrs().Name)
			}
			return err
		}))
		return found
	}
	other := network.NamespaceForTest(t)
	for _, name := range []string{list.InterfacePrefix + "7", list.InterfacePrefix + "8"} {
		require.NoError(t, network.Connect(l.Namespace, name, other, name, network.Options{}))
	}
	living, err := l.Index(list.InterfacePrefix + "8")
	require.NoError(t, err)
	l.attach(t, "from_relay", living)
	look := func() { require.NoError(t, l.Do(l.part.sweep)) }
	look()
	require.Contains(t, names(), list.InterfacePrefix+"7")
	look()
	require.NotContains(t, names(), list.InterfacePrefix+"7")
	require.Contains(t, names(), list.InterfacePrefix+"8")
	require.Contains(t, names(), "pod")
}

// attachProxy puts the proxy's own program there.
func (l *lab) attachProxy(t *testing.T) *programs.FromClientObjects {
	t.Helper()
	var loaded programs.FromClientObjects
	require.NoError(t, programs.LoadFromClientObjects(&loaded, nil))
	t.Cleanup(func() { loaded.Close() })
	require.NoError(t, l.Do(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{Interface: l.index, Program: loaded.FromClient, Attach: ebpf.AttachTCXIngress})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
	return &loaded
}

func TestAProxyThatIsAboutToEndRelaysNobody(t *testing.T) {
	l := newLab(t)
	loaded := l.attachProxy(t)
	require.NoError(t, l.apply(t, proxied))
	require.NoError(t, loaded.Draining.Put(uint32(0), uint32(1)))
	require.ErrorIs(t, l.apply(t, proxied), ErrNotRelayed)
}

// collected are the metrics' values by their outcome; "" for how many are relayed now.
func (l *lab) collected(t *testing.T) map[string]float64 {
	t.Helper()
	metrics := make(chan prometheus.Metric, 16)
	require.NoError(t, l.Do(func() error { l.part.Collect(metrics); return nil }))
	close(metrics)
	values := map[string]float64{}
	for metric := range metrics {
		var written dto.Metric
		require.NoError(t, metric.Write(&written))
		outcome := ""
		for _, label := range written.Label {
			outcome = label.GetValue()
		}
		values[outcome] = written.GetCounter().GetValue() + written.GetGauge().GetValue()
	}
	return values
}

func TestMetricsTellWhatBecameOfTheConnectionsOfTheNodesProxy(t *testing.T) {
	l := newLab(t)
	require.ErrorIs(t, l.apply(t, proxied), ErrNotRelayed)
	require.Empty(t, l.collected(t))
	loaded := l.attachProxy(t)
	require.NoError(t, l.apply(t, proxied))
	require.NoError(t, loaded.Outcomes.Put(uint32(programs.OutcomeNow), uint64(3)))
	require.NoError(t, loaded.Outcomes.Put(uint32(programs.OutcomePlainPeer), uint64(7)))
	require.Equal(t, map[string]float64{"": 3, "PlainPeer": 7, "Relayed": 0, "NoAnswer": 0, "NoRoom": 0, "Busy": 0, "Reset": 0}, l.collected(t))
}

// A node without a proxy does not list its interfaces again and again.
func TestInterfacesAreLookedForWhereThereIsOrWasAProxy(t *testing.T) {
	l := newLab(t)
	name := list.InterfacePrefix + "7"
	other := network.NamespaceForTest(t)
	look := func() { require.NoError(t, l.Do(l.part.sweep)) }
	isThere := func() bool { _, err := l.Index(name); return err == nil }
	leave := func() {
		t.Helper()
		require.NoError(t, network.Connect(l.Namespace, name, other, name, network.Options{}))
	}

	leave()
	for range enough { // an agent that has just started, and what an earlier one saw
		look()
	}
	require.False(t, isThere())
	for range enough {
		look()
	}
	leave()
	for range 3 {
		look()
	}
	require.True(t, isThere(), "it is not looked for where no policy asks for a proxy")

	_ = l.apply(t, proxied)
	for range 3 {
		look()
	}
	require.False(t, isThere())
	for range 3 * enough { // the policy asks on
		look()
	}
	leave()
	_ = l.apply(t, nil) // the proxy died as the policy went
	for range enough {
		look()
	}
	require.False(t, isThere())

	leave()
	index, err := l.Index(name)
	require.NoError(t, err)
	_ = l.apply(t, proxied)
	detach := l.attach(t, "from_relay", index)
	_ = l.apply(t, nil)
	for range 3 * enough { // it lets its connections end, and is killed then
		look()
	}
	require.NoError(t, detach())
	for range enough {
		look()
	}
	require.False(t, isThere())
}
