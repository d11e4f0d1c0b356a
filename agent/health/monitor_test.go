// SPDX-License-Identifier: Apache-2.0

package health

import (
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
)

func nicWith(index int, prefixes ...string) paths.NIC {
	nic := paths.NIC{Index: index, Up: true}
	for _, prefix := range prefixes {
		nic.Addresses = append(nic.Addresses, netip.MustParsePrefix(prefix))
	}
	return nic
}

func upAt(addresses ...string) paths.PeerPath {
	path := paths.PeerPath{Up: true}
	for _, address := range addresses {
		path.Addresses = append(path.Addresses, netip.MustParseAddr(address))
	}
	return path
}

// modelOf is a model with these paths and peers.
func modelOf(found []paths.Path, peers ...paths.Peer) *node.Model {
	model := &node.Model{}
	for _, path := range found {
		model.Paths = append(model.Paths, node.Path{Name: path.Name, Interface: path.Index, Up: path.Usable, Found: path})
	}
	for _, peer := range peers {
		model.Peers = append(model.Peers, node.Peer{Peer: peer})
	}
	return model
}

func TestWhatIsProbedOfAPath(t *testing.T) {
	usable := paths.Path{Name: "blue", NIC: nicWith(3, "10.0.0.1/24", "10.1.0.1/24", "fd00::1/64"), Usable: true}
	unusable := usable
	unusable.Usable = false
	sixOnly := paths.Path{Name: "blue", NIC: nicWith(3, "fd00::1/64"), Usable: true}
	down := upAt("10.0.0.2")
	down.Up = false
	for name, c := range map[string]struct {
		here  paths.Path
		there map[string]paths.PeerPath
		want  string // local>remote, and the other
	}{
		"the first addresses":             {usable, map[string]paths.PeerPath{"blue": upAt("10.0.0.2", "fd00::2")}, "10.0.0.1>10.0.0.2 fd00::2"},
		"the address of the same network": {usable, map[string]paths.PeerPath{"blue": upAt("10.1.0.2")}, "10.1.0.1>10.1.0.2"},
		"one of the family at least":      {usable, map[string]paths.PeerPath{"blue": upAt("192.0.2.1")}, "10.0.0.1>192.0.2.1"},
		"IPv6 where one end has no other": {sixOnly, map[string]paths.PeerPath{"blue": upAt("10.0.0.2", "fd00::2")}, "fd00::1>fd00::2 10.0.0.2"},
		"nothing without a common family": {sixOnly, map[string]paths.PeerPath{"blue": upAt("10.0.0.2")}, ""},
		"nothing that is down there":      {usable, map[string]paths.PeerPath{"blue": down}, ""},
		"nothing that is unusable here":   {unusable, map[string]paths.PeerPath{"blue": upAt("10.0.0.2")}, ""},
		"nothing that the peer has not":   {usable, map[string]paths.PeerPath{"green": upAt("10.0.0.2")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			targets := targetsOf(modelOf([]paths.Path{c.here}, paths.Peer{Name: "node2", Paths: c.there}))
			got := ""
			for _, target := range targets {
				got += target.Local.String() + ">" + target.Remote.String()
				if target.Other.IsValid() {
					got += " " + target.Other.String()
				}
				if target.Peer != "node2" || target.Path != "blue" || target.Interface != 3 {
					t.Errorf("target %+v", target)
				}
			}
			if got != c.want {
				t.Errorf("probed is %q, want %q", got, c.want)
			}
		})
	}
}

func TestLargeProbesAreAsLargeAsWhatPodsSend(t *testing.T) {
	here := paths.Path{Name: "blue", NIC: nicWith(3, "10.0.0.1/24"), Usable: true}
	here.MTU = 9000
	vxlan, ipip := paths.Tunnel{Kind: paths.TunnelVXLAN, Port: 8472}, paths.Tunnel{Kind: paths.TunnelIP}
	pods := func(mtus ...int) (ends map[int]endpoints.HostEnd, all []node.Endpoint) {
		ends = map[int]endpoints.HostEnd{}
		for i, mtu := range mtus {
			ends[i+10] = endpoints.HostEnd{Index: i + 10, MTU: mtu}
			all = append(all, node.Endpoint{HostInterface: i + 10})
		}
		return ends, all
	}
	for name, c := range map[string]struct {
		mtus    []int
		tunnels []paths.Tunnel
		want    int
	}{
		"those of the pod with the largest MTU": {[]int{1400, 1500}, nil, 1500},
		"with what VXLAN adds":                  {[]int{1450}, []paths.Tunnel{vxlan}, 1500},
		"with the least that is added":          {[]int{1450}, []paths.Tunnel{vxlan, ipip}, 1470},
		"not larger than the NIC's":             {[]int{65535}, nil, 9000},
		"nothing while no pod is known":         {nil, []paths.Tunnel{vxlan}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			model := modelOf([]paths.Path{here}, paths.Peer{Name: "node2", Paths: map[string]paths.PeerPath{"blue": upAt("10.0.0.2")}})
			model.Tunnels, model.LookComplete = c.tunnels, true
			model.Look.HostEnds, model.Endpoints = pods(c.mtus...)
			monitor, err := NewMonitor(MonitorOptions{Notify: func() {}})
			require.NoError(t, err)
			defer func() { require.NoError(t, monitor.Close()) }()
			monitor.Apply(t.Context(), model)
			monitor.Sizes().Apply(t.Context(), model)
			require.Equal(t, c.want, monitor.prober.wanted[0].Size)
		})
	}
}

func TestProbesAreAnsweredOnEveryAddressOfUsablePaths(t *testing.T) {
	listeners := listenersOf(modelOf([]paths.Path{
		{Name: "blue", NIC: nicWith(3, "10.0.0.1/24", "fd00::1/64"), Usable: true},
		{Name: "green", NIC: nicWith(4, "10.1.0.1/24")},
		{Name: "red"},
	}))
	want := []Listener{{Interface: 3, Address: netip.MustParseAddr("10.0.0.1")}, {Interface: 3, Address: netip.MustParseAddr("fd00::1")}}
	if diff := cmp.Diff(want, listeners, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("listeners (-want +got):\n%s", diff)
	}
}

func newMonitor(t *testing.T) (*Monitor, map[string]bool) {
	t.Helper()
	active := map[string]bool{}
	m, err := NewMonitor(MonitorOptions{
		Active: func() (map[string]bool, error) { return active, nil }, Notify: func() {}, Log: testr.New(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m, active
}

func TestPeersAreActiveForAWhileAfterTheirLastPacket(t *testing.T) {
	h, active := newMonitor(t)
	h.Apply(t.Context(), modelOf([]paths.Path{{Name: "blue", NIC: nicWith(3, "10.0.0.1/24"), Usable: true}},
		paths.Peer{Name: "node2", Paths: map[string]paths.PeerPath{"blue": upAt("10.0.0.2")}}))
	isActive := func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, used := h.usedAt["node2"]
		return used
	}
	now := time.Now()
	if isActive() {
		t.Error("active before a packet was sent")
	}
	active["node2"] = true
	h.lookForActive(now)
	delete(active, "node2")
	h.lookForActive(now.Add(stayActive - time.Millisecond))
	if !isActive() {
		t.Error("not active any more before its time")
	}
	h.lookForActive(now.Add(stayActive + time.Millisecond))
	if isActive() {
		t.Error("active for ever")
	}
}

func TestWhatIsWorthShowing(t *testing.T) {
	before := v1alpha1.NodePath{PeersProbed: 3, PeersAlive: 3, MedianRTTMicros: 1000, LossPercent: 10}
	with := func(change func(*v1alpha1.NodePath)) v1alpha1.NodePath {
		changed := before
		change(&changed)
		return changed
	}
	for name, c := range map[string]struct {
		after           v1alpha1.NodePath
		states, figures bool
	}{
		"nothing new":               {before, false, false},
		"a node that is distant":    {with(func(p *v1alpha1.NodePath) { p.DistantTo = []string{"node2"} }), false, false},
		"a peer that died":          {with(func(p *v1alpha1.NodePath) { p.PeersAlive = 2 }), true, false},
		"another that died instead": {with(func(p *v1alpha1.NodePath) { p.Unreachable = []string{"node3"} }), true, false},
		"a slightly longer time":    {with(func(p *v1alpha1.NodePath) { p.MedianRTTMicros = 1200 }), false, false},
		"a longer time":             {with(func(p *v1alpha1.NodePath) { p.MedianRTTMicros = 1300 }), false, true},
		"a little more loss":        {with(func(p *v1alpha1.NodePath) { p.LossPercent = 14 }), false, false},
		"much more loss":            {with(func(p *v1alpha1.NodePath) { p.LossPercent = 15 }), false, true},
		"no loss any more":          {with(func(p *v1alpha1.NodePath) { p.LossPercent = 0 }), false, true},
	} {
		if got := statesDiffer(before, c.after); got != c.states {
			t.Errorf("%s: states differ: %v", name, got)
		}
		if got := figuresDiffer(before, c.after); got != c.figures {
			t.Errorf("%s: figures differ: %v", name, got)
		}
		if got := distancesDiffer(before, c.after); got != (len(c.after.DistantTo) > 0) {
			t.Errorf("%s: distances differ: %v", name, got)
		}
	}
}

func TestFiguresAreRounded(t *testing.T) {
	for value, want := range map[int64]int64{0: 0, 7: 7, 99: 99, 101: 100, 125: 130, 4449: 4400, 995: 1000, 123456: 120000} {
		if got := twoDigits(value); got != want {
			t.Errorf("%d becomes %d, want %d", value, got, want)
		}
	}
	figures := pathFigures(Summary{Probed: 12, Alive: 1, Loss: 0.256, MedianRTT: 1234 * time.Microsecond, Unreachable: make([]string, 11)})
	if figures.LossPercent != 26 || figures.MedianRTTMicros != 1200 || len(figures.Unreachable) != 10 || figures.PeersProbed != 12 || figures.PeersAlive != 1 {
		t.Errorf("shown as %+v", figures)
	}
}
