// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// trafficOf is what a datapath counts, by path and by whose it is.
func trafficOf(t *testing.T, d *Datapath) (sent, received map[string]counted) {
	t.Helper()
	sent, received = map[string]counted{}, map[string]counted{}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(d)
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		into := map[string]map[string]counted{"braid_path_sent_bytes_total": sent, "braid_path_received_bytes_total": received}[family.GetName()]
		for _, metric := range family.GetMetric() {
			if into == nil {
				continue
			}
			labels := map[string]string{}
			for _, label := range metric.GetLabel() {
				labels[label.GetName()] = label.GetValue()
			}
			of := labels["namespace"] + " " + labels["policy"]
			if into[of] == nil {
				into[of] = counted{}
			}
			into[of][labels["path"]] = uint64(metric.GetCounter().GetValue())
		}
	}
	return sent, received
}

// The two pairs of pods, by the namespaces and policies of both their ends.
const (
	shop = "shop MPTCPPolicy/shop/spread"
	bank = "bank ClusterMPTCPPolicy/all"
)

// ownedStates are the lab's states, the first pod of each node the shop's and the second the
// bank's, with this preference of the shop's.
func (l *lab) ownedStates(t *testing.T, preferred ...v1alpha1.PathName) []State {
	t.Helper()
	states := l.states(t)
	for i := range states {
		first, second := &states[i].Endpoints[0], &states[i].Endpoints[1]
		first.Namespace, first.Policy = "shop", v1alpha1.PolicyReference{Kind: "MPTCPPolicy", Namespace: "shop", Name: "spread"}
		second.Namespace, second.Policy = "bank", v1alpha1.PolicyReference{Kind: "ClusterMPTCPPolicy", Name: "all"}
		first.Preferred = preferred
	}
	return states
}

func (l *lab) applyThese(t *testing.T, states []State) {
	t.Helper()
	for i := range states {
		l.apply(t, i, states[i])
	}
}

// wholePackets has the NICs get single packets from the stack, as a wire would see them:
// then their counters have the headers of each.
func (l *lab) wholePackets(t *testing.T) {
	t.Helper()
	for _, node := range l.Nodes {
		require.NoError(t, node.Do(func() error {
			for _, path := range l.Spec.Paths {
				link, err := netlink.LinkByName(path)
				if err != nil {
					return err
				}
				if err := netlink.LinkSetGSOMaxSegs(link, 1); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// compare has something happen, and compares what the counters say with what the NICs do.
func (l *lab) compare(t *testing.T, do func()) (shopSent, bankSent counted) {
	t.Helper()
	type at struct {
		nics           map[string]network.Counters
		sent, received map[string]counted
	}
	look := func() (all []at) {
		for i := range l.Nodes {
			nics, err := l.NICCounters(l.Nodes[i])
			require.NoError(t, err)
			sent, received := trafficOf(t, l.datapaths[i])
			all = append(all, at{nics, sent, received})
		}
		return all
	}
	before := look()
	do()
	after := look()
	for i := range after {
		for path, nic := range after[i].nics {
			sent := after[i].sent[shop][path] + after[i].sent[bank][path] - before[i].sent[shop][path] - before[i].sent[bank][path]
			received := after[i].received[shop][path] + after[i].received[bank][path] - before[i].received[shop][path] - before[i].received[bank][path]
			expectClose(t, l.Nodes[i].NodeName()+" sent by "+path, sent, nic.TxBytes-before[i].nics[path].TxBytes, 0.1)
			expectClose(t, l.Nodes[i].NodeName()+" received by "+path, received, nic.RxBytes-before[i].nics[path].RxBytes, 0)
		}
	}
	difference := func(of string) counted {
		result := counted{}
		for path := range after[0].nics {
			result[path] = after[0].sent[of][path] - before[0].sent[of][path]
		}
		return result
	}
	return difference(shop), difference(bank)
}

// expectClose allows for what nobody counts, ARP and the like, and for what the NIC's queue
// drops of what is sent.
func expectClose(t *testing.T, what string, got, nic uint64, dropped float64) {
	t.Helper()
	t.Logf("%s: %d counted, %d by the NIC (%+.2f %%)", what, got, nic, 100*(float64(got)/float64(max(nic, 1))-1))
	if float64(got) < 0.99*float64(nic)-20_000 || float64(got) > (1.01+dropped)*float64(nic)+20_000 {
		t.Errorf("%s: %d bytes are counted, and the NIC says %d", what, got, nic)
	}
}

// total is the sum over all paths.
func (c counted) total() (all uint64) {
	for _, bytes := range c {
		all += bytes
	}
	return all
}

func TestBytesAreCountedAsTheNICsDoByNamespaceAndPolicy(t *testing.T) {
	l := newLab(t, threePaths, 2, Options{})
	l.wholePackets(t)
	clients := []*network.Pod{l.Pod("pod-1-1"), l.Pod("pod-1-2")}
	servers := []*network.Pod{l.Pod("pod-2-1"), l.Pod("pod-2-2")}
	for _, version := range []int{4, 6} {
		for i := range clients {
			serve(t, servers[i], version)
			announce(t, clients[i], servers[i], version, 3)
		}
	}
	l.applyThese(t, l.ownedStates(t))
	both := func(version int, direction traffic.Direction) (payload []int64) {
		options := traffic.Options{Duration: 800 * time.Millisecond, Direction: direction}
		first, second := start(t, clients[0], servers[0], version, options), start(t, clients[1], servers[1], version, options)
		return []int64{first.wait(t).Bytes, second.wait(t).Bytes}
	}
	for _, version := range []int{4, 6} {
		var payload []int64
		ofShop, ofBank := l.compare(t, func() { payload = both(version, traffic.Up) })
		for i, sent := range []counted{ofShop, ofBank} {
			overhead := float64(sent.total())/float64(payload[i]) - 1
			t.Logf("IPv%d: %d bytes of payload, %v sent", version, payload[i], sent)
			if overhead < 0.03 || overhead > 0.25 { // headers, and what was sent again
				t.Errorf("IPv%d: the pair %d sent %d bytes of payload and %v on the wire", version, i, payload[i], sent)
			}
		}
		l.compare(t, func() { both(version, traffic.Down) })
	}
	t.Run("with a preference", func(t *testing.T) {
		l.applyThese(t, l.ownedStates(t, "green"))
		ofShop, ofBank := l.compare(t, func() { both(4, traffic.Up) })
		if ofShop.share("green") < most || ofBank.share("green") > 0.6 {
			t.Errorf("the shop prefers green and sent %v, the bank %v", ofShop, ofBank)
		}
	})
	t.Run("with a NIC that fails", func(t *testing.T) {
		states := l.ownedStates(t, "green")
		l.setUp(t, states, 0, "green", false)
		ofShop, ofBank := l.compare(t, func() { both(4, traffic.Up) })
		if ofShop["green"]+ofBank["green"] > 0 || ofShop["red"] == 0 || ofShop["blue"] == 0 {
			t.Errorf("green cannot be used, and the shop sent %v, the bank %v", ofShop, ofBank)
		}
	})
}

func TestCountersGoOnOverARestartAndEndWithTheirPath(t *testing.T) {
	l := newLab(t, threePaths, 2, Options{})
	states := l.ownedStates(t)
	l.apply(t, 0, states[0])
	count := func(account node.Account, path uint32, bytes uint64) {
		each := make([]uplink.ToUplinkTraffic, ebpf.MustPossibleCPU())
		each[0].SentBytes, each[len(each)-1].ReceivedBytes = bytes, 2*bytes
		require.NoError(t, l.datapaths[0].loaded.Value.maps().Traffic.Put(indexOf(account.Number, path), each))
	}
	for _, account := range l.datapaths[0].traffic.accounts {
		for path := range uint32(len(threePaths)) {
			count(account, path, uint64(100*account.Number+path))
		}
	}
	sent, received := trafficOf(t, l.datapaths[0])
	require.Len(t, sent, 2)
	require.Equal(t, 2*sent[shop]["red"], received[shop]["red"])

	l.reopen(t, 0, Options{})
	empty, _ := trafficOf(t, l.datapaths[0])
	require.Empty(t, empty, "nothing is known before the first round")
	l.apply(t, 0, states[0])
	after, _ := trafficOf(t, l.datapaths[0])
	require.Equal(t, sent, after, "after a restart")

	states[0].Endpoints = states[0].Endpoints[:1]
	l.apply(t, 0, states[0])
	after, _ = trafficOf(t, l.datapaths[0])
	require.Equal(t, sent, after, "the bank's pod has gone, and what it sent last may not have been seen")

	l.apply(t, 0, without(states[0], "green"))
	l.apply(t, 0, without(states[0], "green"))
	l.apply(t, 0, states[0])
	after, _ = trafficOf(t, l.datapaths[0])
	sent[shop]["green"], sent[bank]["green"] = 0, 0
	require.Equal(t, sent, after, "a path that comes anew")
}

func TestANodeHasNoMoreSeriesThanAccountsAndPaths(t *testing.T) {
	spec, err := uplink.LoadToUplink()
	require.NoError(t, err)
	values, err := ebpf.NewMap(spec.Maps[uplink.ToUplinkMapTraffic])
	require.NoError(t, err)
	defer values.Close()
	d, names := &Datapath{}, pathNumbers{}
	var accounts []node.Account
	for number := range uint32(uplink.MaxAccounts - 1) {
		accounts = append(accounts, node.Account{Namespace: "a", Policy: fmt.Sprint(number + 1), Number: number + 1})
	}
	for path := range uint8(uplink.MaxPaths) {
		names[fmt.Sprint(path)] = path
	}
	d.traffic.use(values)
	d.traffic.show(accounts, names)
	series := func() (count int) {
		registry := prometheus.NewPedanticRegistry()
		registry.MustRegister(d)
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			count += len(family.GetMetric())
		}
		return count
	}
	require.Equal(t, 255*8*4, series())
	each := make([]uplink.ToUplinkTraffic, ebpf.MustPossibleCPU())
	each[0].SentBytes = 1
	for _, account := range accounts {
		require.NoError(t, values.Put(uplink.TrafficOfNoPath+account.Number, each))
	}
	require.Equal(t, 255*9*4, series(), "something went by NICs of no path")
}
