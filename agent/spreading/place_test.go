// SPDX-License-Identifier: Apache-2.0

package spreading

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/paths"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/network"
)

func TestRoutesTellWhereAPeerIs(t *testing.T) {
	n := network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"blue", "green"}, PodsPerNode: 1})
	own, there := n.Nodes[0], n.Nodes[1]
	ip := func(arguments ...string) {
		out, err := own.Run("ip", arguments...)
		require.NoError(t, err, out)
	}
	index := func(name string) int {
		index, err := own.Index(name)
		require.NoError(t, err)
		return index
	}
	ip("link", "add", "bridge9", "type", "bridge")
	ip("address", "add", "10.99.1.1/24", "dev", "bridge9")
	ip("link", "set", "bridge9", "up")
	ip("link", "add", "switch9", "type", "veth", "peer", "name", "switch8")
	ip("address", "add", "10.99.2.1/24", "dev", "switch9")
	ip("link", "set", "switch9", "up")
	ip("link", "set", "switch8", "up")
	ip("route", "add", "10.99.3.0/24", "via", "10.99.1.9", "dev", "bridge9")

	pod := own.Pods[0]
	peer := node.Peer{Peer: paths.Peer{Name: "node2", Addresses: []netip.Addr{netip.MustParseAddr(there.Address(0, 4))}}, Number: 7}
	model := &node.Model{
		Paths: []node.Path{{Name: "blue", Interface: index("blue")}},
		Peers: []node.Peer{peer},
		Look:  endpoints.Snapshot{HostEnds: map[int]endpoints.HostEnd{index(pod.HostInterface): {}}},
	}
	stranger := &node.Model{Paths: model.Paths}
	expect := func(model *node.Model, address string, want spot) {
		t.Helper()
		handle, err := own.Handle()
		require.NoError(t, err)
		got, err := newAtlas(model, handle, nil).find(netip.MustParseAddr(address))
		require.NoError(t, err)
		if got.peer != nil {
			require.Equal(t, uint32(7), got.peer.Number)
			got.peer = want.peer
		}
		require.Equal(t, want, got, "the place of %s", address)
	}
	expect(model, pod.IPv4, spot{place: here})
	expect(model, own.Address(0, 4), spot{place: here})
	expect(model, "127.0.0.1", spot{place: here})
	expect(model, "10.99.1.5", spot{place: here})
	expect(model, "10.99.3.5", spot{place: elsewhere})
	expect(model, "10.99.2.5", spot{place: elsewhere})
	expect(model, there.Pods[0].IPv4, spot{place: behindPeer, peer: &peer})
	expect(stranger, there.Pods[0].IPv4, spot{place: elsewhere})

	ip("link", "add", "vxlan9", "type", "vxlan", "id", "9", "dstport", "4789", "remote", there.Address(0, 4), "dev", "blue")
	ip("address", "add", "10.99.4.1/24", "dev", "vxlan9")
	ip("link", "set", "vxlan9", "up")
	expect(model, "10.99.4.5", spot{place: behindTunnel, tunnel: "vxlan9", kind: paths.TunnelVXLAN})
	// Where there are tunnels, a program or a switch may put packets into them.
	expect(model, "10.99.2.5", spot{place: behindTunnel, tunnel: "switch9", kind: paths.TunnelVXLAN})
}

func TestPathsToAPeerAreThoseThatBothEndsCanUse(t *testing.T) {
	up := paths.PeerPath{Up: true}
	peer := &node.Peer{Peer: paths.Peer{Name: "node2", Paths: map[string]paths.PeerPath{"blue": up, "green": up, "red": {}}}}
	open := []string{"blue", "green", "red"}
	dead := func(names ...string) *atlas {
		a := &atlas{dead: map[string]map[string]bool{"node2": {}}}
		for _, name := range names {
			a.dead["node2"][name] = true
		}
		return a
	}
	require.Equal(t, []string{"blue", "green"}, dead().usable(open, peer))
	require.Equal(t, []string{"green"}, dead("blue").usable(open, peer))
	require.Equal(t, []string{"blue", "green"}, dead("blue", "green").usable(open, peer), "probes that call all dead are not believed")
	require.Equal(t, open, dead().usable(open, nil))

	require.Equal(t, "green", carrier("green", []string{"blue", "green"}))
	require.Equal(t, "blue", carrier("green", []string{"blue"}), "another stands in")
	require.Equal(t, "green", carrier("green", nil))
}

func TestPathsThatAPodCannotUseAreNamed(t *testing.T) {
	nic := func(name string) node.Path { return node.Path{Name: name, Interface: 2, Up: true} }
	noCarrier := node.Path{Name: "green", Interface: 3, Found: paths.Path{Message: "ens2 has no carrier"}}
	all := []node.Path{nic("blue"), nic("green"), nic("red")}
	tests := map[string]struct {
		paths  []node.Path
		change func(*v1alpha1.PlanEndpoint)
		open   []string
		shut   []string
	}{
		"all are open":       {all, func(*v1alpha1.PlanEndpoint) {}, []string{"blue", "green", "red"}, nil},
		"one has no carrier": {[]node.Path{nic("blue"), noCarrier, nic("red")}, func(*v1alpha1.PlanEndpoint) {}, []string{"blue", "red"}, []string{"path green: ens2 has no carrier"}},
		"one alone is left": {
			[]node.Path{nic("blue"), noCarrier}, func(*v1alpha1.PlanEndpoint) {},
			[]string{"blue"}, []string{"path blue alone is left", "path green: ens2 has no carrier", "path red does not exist here"},
		},
		"backups wait": {all, func(p *v1alpha1.PlanEndpoint) { p.Backup = []v1alpha1.PathName{"red"} }, []string{"blue", "green"}, []string{"path red is a backup"}},
		"a backup that is all there is": {
			[]node.Path{nic("red")}, func(p *v1alpha1.PlanEndpoint) { p.Backup = []v1alpha1.PathName{"red"} },
			[]string{"red"}, []string{"path red alone is left", "path blue does not exist here", "path green does not exist here"},
		},
		"what is preferred is used alone": {
			all, func(p *v1alpha1.PlanEndpoint) {
				p.Preferred, p.Preference = []v1alpha1.PathName{"blue"}, &v1alpha1.PlanPreference{Weight: 100}
			},
			[]string{"blue"}, []string{"path blue alone is left", "path green is not preferred", "path red is not preferred"},
		},
		"unless a part of the subflows prefers it": {
			all, func(p *v1alpha1.PlanEndpoint) {
				p.Preferred, p.Preference = []v1alpha1.PathName{"blue"}, &v1alpha1.PlanPreference{Weight: 50}
			},
			[]string{"blue", "green", "red"}, nil,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			plan := &v1alpha1.PlanEndpoint{Paths: []v1alpha1.PathWeight{{Path: "blue"}, {Path: "green"}, {Path: "red"}}}
			test.change(plan)
			open, shut := openPaths(&node.Model{Paths: test.paths}, &node.Endpoint{PlanEndpoint: plan})
			require.Equal(t, test.open, open)
			require.Equal(t, test.shut, shut)
		})
	}
}
