// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
)

// measured are the values of those of a datapath's metrics that have a path alone, by name
// and path.
func measured(t *testing.T, d *Datapath) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(d)
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if len(metric.GetLabel()) > 1 {
				continue // see trafficOf
			}
			value := metric.GetGauge().GetValue() + metric.GetCounter().GetValue() // one of them is there
			values[family.GetName()+" "+metric.GetLabel()[0].GetValue()] = value
		}
	}
	return values
}

// avoiding are flows on green, by their ports, some of which avoid it.
func avoiding(t *testing.T) map[uint16]uplink.ToUplinkFlow {
	t.Helper()
	now, err := tick()
	require.NoError(t, err)
	flow := func(peer uint16, ticksAgo uint32, tries uint8) uplink.ToUplinkFlow {
		return uplink.ToUplinkFlow{Peer: peer, Path: 1, Last: 2, Avoided: 1 << 1, AvoidedAt: now - ticksAgo, Tries: tries}
	}
	flows := map[uint16]uplink.ToUplinkFlow{
		1: flow(1, 0, 4), 2: flow(1, 8, 4), 3: flow(2, uplink.AvoidFor, 4),
		4: flow(3, uplink.AvoidFor, 1), // it would try green again
		5: flow(4, 100, 4),             // its peer has answered since
		6: flow(5, 0, 4), 7: flow(6, 0, 4), 8: flow(1, 0, 4),
	}
	ended, onItsPath, both := flows[6], flows[7], flows[8]
	ended.Ended, onItsPath.Avoided, onItsPath.Last = uplink.EndedBoth, 0, 1
	both.Avoided, both.Last = 1<<1|1<<2, 0
	flows[6], flows[7], flows[8] = ended, onItsPath, both
	return flows
}

// avoidGreen remembers them on a node of three paths, and that one peer has answered.
func (l *lab) avoidGreen(t *testing.T) *Datapath {
	t.Helper()
	d := l.datapaths[0]
	for port, flow := range avoiding(t) {
		l.rememberFlow(t, "10.244.9.9", bpf.Port(port), flow)
	}
	now, err := tick()
	require.NoError(t, err)
	require.NoError(t, d.loaded.Value.maps().Answered.Put(uint32(4*uplink.MaxPaths+1), now))
	return d
}

func TestFlowsThatAvoidAPathAreCounted(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	require.Empty(t, measured(t, l.datapaths[0]), "before anything is loaded")
	state := l.states(t)[0]
	l.apply(t, 0, state)
	d := l.avoidGreen(t)
	require.NoError(t, d.loaded.Value.maps().Departures.Put(uint32(1), uint64(7)))
	left := map[string]float64{
		"braid_path_flows_left_total blue": 0, "braid_path_flows_left_total green": 7, "braid_path_flows_left_total red": 0,
		"braid_duplicate_acknowledgements_changed_total sent": 0, "braid_duplicate_acknowledgements_changed_total received": 0,
	}
	require.Equal(t, left, measured(t, d), "before the flows were looked at")
	require.NoError(t, d.flows.sweep())
	want := map[string]float64{
		"braid_path_flows_avoiding blue": 0, "braid_path_flows_avoiding green": 4, "braid_path_flows_avoiding red": 1,
		"braid_path_peers_avoided blue": 0, "braid_path_peers_avoided green": 2, "braid_path_peers_avoided red": 1,
	}
	maps.Copy(want, left)
	require.Equal(t, want, measured(t, d))

	l.apply(t, 0, without(state, "green"))
	require.NotContains(t, measured(t, d), "braid_path_flows_left_total green")
	var departures uint64
	require.NoError(t, d.loaded.Value.maps().Departures.Lookup(uint32(1), &departures))
	require.Zero(t, departures, "another path gets the number")
}

func TestAFlowTellsWhichPathStandsInForItsOwn(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	l.apply(t, 0, l.states(t)[0])
	d := l.avoidGreen(t)
	want := map[uint16]string{1: "red", 2: "red", 3: "red", 4: "", 5: "", 6: "", 7: "", 8: "blue"}
	pinned, err := Open(d.options).PinnedFlows()
	require.NoError(t, err)
	for name, flows := range map[string][]Flow{"by the datapath": l.flows(t, 0), "by the pins": pinned} {
		got := map[uint16]string{}
		for _, flow := range flows {
			got[flow.Local.Port()] = flow.StandIn
		}
		require.Equal(t, want, got, name)
	}
	table, err := d.OpenFlows()
	require.NoError(t, err)
	defer table.Close()
	for _, port := range slices.Sorted(maps.Keys(want)) {
		flow, err := table.Find(netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), port), netip.MustParseAddrPort("10.9.9.9:0"))
		require.NoError(t, err)
		require.Equal(t, want[port], flow.StandIn, "flow %d", port)
	}
}

// A flow whose packets left by red last does so on because its own path is dead, or its pod
// prefers another one; else its next packet takes its own.
func TestAFlowThatAnotherPathCarriesTellsWhich(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	state := l.states(t)[0]
	l.apply(t, 0, state)
	d := l.datapaths[0]
	key := uplink.ToUplinkFlowKey{Local: toAddress(netip.MustParseAddr("10.244.9.9")), LocalPort: bpf.Port(1)}
	peer, endpoint := uint16(9), uint32(9)
	require.NoError(t, d.loaded.Value.maps().Flows.Put(key, uplink.ToUplinkFlow{Peer: peer, Endpoint: endpoint, Path: 1, Last: 2, Role: uplink.RoleInitiator}))
	standIn := func() string { return l.flows(t, 0)[0].StandIn }
	require.Empty(t, standIn(), "nothing is known of the peer")
	require.NoError(t, d.loaded.Value.maps().Peers.Put(uint32(peer), uplink.ToUplinkPeer{Ipv4Paths: 0b111}))
	require.Empty(t, standIn(), "its own path can be used")
	require.NoError(t, d.loaded.Value.maps().Peers.Put(uint32(peer), uplink.ToUplinkPeer{Ipv4Paths: 0b101}))
	require.Equal(t, "red", standIn(), "its own path is dead")
}
