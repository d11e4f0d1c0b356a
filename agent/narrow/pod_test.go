// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/internal/lab/pair"
)

// The uplinks know a backend where the pod knows the Service.
func TestASubflowToAServiceIsFoundByItsOwnEnd(t *testing.T) {
	client, server := pair.New(t)
	connection := client.Connect(server.Serve(4))
	ends := func(of net.Addr) netip.AddrPort { return of.(*net.TCPAddr).AddrPort() }
	local, remote := ends(connection.LocalAddr()), ends(connection.RemoteAddr())
	backend := netip.MustParseAddrPort("192.0.2.7:8080")

	cases := []struct {
		name  string
		host  *pair.Host
		flow  datapath.BusyFlow
		known bool
	}{
		{"as both know it", client, datapath.BusyFlow{Local: local, Remote: remote}, true},
		{"translated", client, datapath.BusyFlow{Local: local, Remote: backend}, true},
		{"of a port that nobody has", client, datapath.BusyFlow{Local: netip.AddrPortFrom(local.Addr(), 1), Remote: backend}, false},
		{"at the server, whose own end all of its connections have", server, datapath.BusyFlow{Local: remote, Remote: backend}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			opened, err := openPod(c.host.Path(), &budget{})
			require.NoError(t, err)
			defer opened.Close()
			now := time.Now()
			for time := range 2 { // the second time it is remembered
				byToken, others, asked, err := opened.connections(now, []datapath.BusyFlow{c.flow})
				require.NoError(t, err)
				require.Equal(t, c.known, len(byToken) == 1)
				require.Equal(t, !c.known, len(others) == 1)
				require.Equal(t, time == 0, asked > 0)
				for token, flows := range byToken {
					found, others, err := opened.connection(token, flows)
					require.NoError(t, err)
					require.Empty(t, others)
					require.Equal(t, flows, found.flows)
					require.NotZero(t, found.data.buffer)
				}
			}
		})
	}
}

func TestWhatWasFoundOfAFlowIsAskedForAgain(t *testing.T) {
	client, server := pair.New(t)
	connection := client.Connect(server.Serve(4))
	ends := func(of net.Addr) netip.AddrPort { return of.(*net.TCPAddr).AddrPort() }
	flow := datapath.BusyFlow{Local: ends(connection.LocalAddr()), Remote: ends(connection.RemoteAddr())}
	none := datapath.BusyFlow{Local: netip.AddrPortFrom(flow.Local.Addr(), 1), Remote: flow.Remote}
	opened, err := openPod(client.Path(), &budget{})
	require.NoError(t, err)
	defer opened.Close()
	now := time.Now()
	asks := func(flows ...datapath.BusyFlow) int {
		_, _, asked, err := opened.connections(now, flows)
		require.NoError(t, err)
		return asked
	}
	require.Equal(t, 2, asks(flow, none))
	now = now.Add(searchEvery)
	require.Equal(t, 1, asks(flow, none), "where it belonged to no connection, after a while")
	now = now.Add(forget + 1)
	require.Zero(t, asks(), "with none that sends")
	require.Equal(t, 1, asks(flow), "where it was not there for a while")

	found, others, err := opened.connection(7, []datapath.BusyFlow{flow})
	require.NoError(t, err)
	require.Nil(t, found, "there is no such connection")
	require.Equal(t, []datapath.BusyFlow{flow}, others)
	require.Equal(t, 1, asks(flow), "where it belongs to another connection than before")
}

// leavesBy are the paths of flows that are known.
type leavesBy map[ends]uint8

func (l leavesBy) BusyFlows() ([]datapath.BusyFlow, error) { return nil, nil }
func (l leavesBy) Share(datapath.BusyFlow, uint8) error    { return nil }
func (l leavesBy) Part(datapath.BusyFlow) error            { return nil }

func (l leavesBy) PathOf(local, remote netip.AddrPort) (path uint8, known bool, err error) {
	path, known = l[ends{local, remote}]
	return path, known, nil
}

func TestASubflowThatSendsTooLittleToBeToldIsFound(t *testing.T) {
	client, server := pair.New(t)
	connection := client.Connect(server.Serve(4))
	of := func(of net.Addr) netip.AddrPort { return of.(*net.TCPAddr).AddrPort() }
	flow := datapath.BusyFlow{Local: of(connection.LocalAddr()), Remote: of(connection.RemoteAddr()), Path: slowPath}
	opened, err := openPod(client.Path(), &budget{})
	require.NoError(t, err)
	defer opened.Close()
	now, told := time.Now(), []datapath.BusyFlow{flow}
	byToken, _, _, err := opened.connections(now, told)
	require.NoError(t, err)
	require.Len(t, byToken, 1)
	with := func(token uint32, told []datapath.BusyFlow, paths leavesBy) []datapath.BusyFlow {
		flows, err := opened.withQuiet(now, token, told, paths)
		require.NoError(t, err)
		return flows
	}
	for token := range byToken {
		known := leavesBy{endsOf(flow): slowPath}
		require.Empty(t, with(token, nil, known), "nobody has looked for any")
		require.NoError(t, opened.findQuiet(now, token, told))
		require.Equal(t, told, with(token, nil, known))
		require.Equal(t, told, with(token, told, known), "once")
		require.Empty(t, with(token, nil, nil), "where the programs know no path of it")
		require.Empty(t, with(token+1, nil, known), "for another connection")

		found, ended, err := opened.connection(token, with(token, nil, known))
		require.NoError(t, err)
		require.Empty(t, ended)
		require.Equal(t, []int{slowPath}, found.own)
		require.Zero(t, found.others)
		found, _, err = opened.connection(token, nil)
		require.NoError(t, err)
		require.Equal(t, 1, found.others, "subflows that were not told and not found")

		opened.quiet = map[uint32][]ends{}
		require.NoError(t, opened.findQuiet(now.Add(searchEvery-1), token, told))
		require.Empty(t, with(token, nil, known), "it was looked for so soon again")
		require.NoError(t, opened.findQuiet(now.Add(searchEvery), token, told))
		require.NotEmpty(t, with(token, nil, known))
		_, _, _, err = opened.connections(now, nil)
		require.NoError(t, err)
		require.Empty(t, with(token, nil, known), "no subflow of the connection sends much any longer")
	}
}

func TestWhetherAConnectionHasQuietSubflowsIsSeenOnceInAWhile(t *testing.T) {
	flow, now := datapath.BusyFlow{Local: netip.MustParseAddrPort("192.0.2.1:1")}, time.Now()
	p := &pod{members: map[ends]*member{endsOf(flow): {}}}
	require.True(t, p.isDue(now, flow))
	require.False(t, p.isDue(now.Add(searchEvery-1), flow))
	require.True(t, p.isDue(now.Add(searchEvery), flow))
}

func TestSearchesOfAllPodsTakeASmallPartOfTheTime(t *testing.T) {
	now, shared := time.Now(), &budget{}
	var pods []*pod
	for range 2 {
		client, _ := pair.New(t)
		opened, err := openPod(client.Path(), shared)
		require.NoError(t, err)
		defer opened.Close()
		pods = append(pods, opened)
	}
	shared.spend(now, 100*time.Millisecond)
	for _, opened := range pods {
		require.NoError(t, opened.findQuiet(now.Add(2*time.Second-1), 1, nil))
		require.True(t, opened.sought.IsZero())
	}
	now = now.Add(2 * time.Second)
	require.NoError(t, pods[0].findQuiet(now, 1, nil))
	require.Equal(t, now, pods[0].sought)
	require.NoError(t, pods[1].findQuiet(now, 1, nil))
	require.True(t, pods[1].sought.IsZero(), "the other one's took some time")
	require.NoError(t, pods[1].findQuiet(now.Add(time.Minute), 1, nil))
	require.False(t, pods[1].sought.IsZero())
}

func TestAQuietSubflowToAServiceHasTheBackendOfTheOthers(t *testing.T) {
	addresses := func(local, remote string) ends {
		return ends{netip.MustParseAddrPort(local), netip.MustParseAddrPort(remote)}
	}
	told := addresses("192.0.2.1:1", "192.0.2.7:8080")
	p := &pod{translated: map[netip.AddrPort]netip.AddrPort{told.local: netip.MustParseAddrPort("198.51.100.1:80")}}
	flows := []datapath.BusyFlow{{Local: told.local, Remote: told.remote}}
	require.Equal(t, addresses("192.0.2.1:2", "192.0.2.7:8080"), p.asUplinksKnow(addresses("192.0.2.1:2", "198.51.100.1:80"), flows))
	require.Contains(t, p.translated, netip.MustParseAddrPort("192.0.2.1:2"))
	direct := addresses("192.0.2.1:3", "192.0.2.7:8080")
	require.Equal(t, direct, p.asUplinksKnow(direct, flows))
	require.Equal(t, told, p.asUplinksKnow(addresses("192.0.2.1:1", "198.51.100.1:80"), flows), "the subflow that was told itself")
}

func TestAPodThatHasEndedIsNoError(t *testing.T) {
	opened, err := openPod(t.TempDir()+"/gone", &budget{})
	require.NoError(t, err)
	require.Nil(t, opened)
}
