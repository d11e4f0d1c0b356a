// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	programs "braid.dev/braid/bpf/proxy"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/proxy"
)

func randomBytes(size int) []byte {
	data := make([]byte, size)
	source := rand.NewChaCha8([32]byte{1})
	_, _ = source.Read(data)
	return data
}

// sendAll sends and says that this was all.
func sendAll(connection *net.TCPConn, data []byte) error {
	if _, err := connection.Write(data); err != nil {
		return err
	}
	return connection.CloseWrite()
}

func TestPlainConnectionsUseAllNICsInBothDirections(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		address, accepted := listen(t, l.server, version)
		client := l.dial(t, address)
		server := <-accepted
		multipath, err := server.MultipathTCP()
		require.NoError(t, err)
		require.True(t, multipath)
		require.Equal(t, client.LocalAddr().String(), server.RemoteAddr().String())
		data := randomBytes(48 << 20)
		for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			failed := make(chan error, 1)
			go func() { failed <- sendAll(way[0], data) }()
			got, err := io.ReadAll(way[1])
			require.NoError(t, err)
			require.NoError(t, <-failed)
			requireSame(t, data, got)
			if way[0] == client {
				expectShares(t, server, len(data))
			}
		}
	})
}

// expectShares expects three subflows, each of which carried its part of what was sent.
func expectShares(t *testing.T, server *net.TCPConn, size int) {
	t.Helper()
	subflows, err := traffic.Subflows(server)
	require.NoError(t, err)
	require.Len(t, subflows, 3)
	for _, subflow := range subflows {
		require.Greater(t, int(subflow.Received), size/5, "%+v", subflows)
	}
}

// requireSame says where data differ: they are too many to be shown.
func requireSame(t *testing.T, want, got []byte) {
	t.Helper()
	same := 0
	for same < min(len(got), len(want)) && got[same] == want[same] {
		same++
	}
	if same < len(want) || same < len(got) {
		t.Fatalf("%d of %d bytes came in, and they differ from byte %d on", len(got), len(want), same)
	}
}

func TestAVirtualMachinesConnectionsAreRelayedToo(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.Pod("guest-1-1"))
		address, accepted := listen(t, l.server, version)
		client := l.dial(t, address)
		data := randomBytes(48 << 20) // subflows come late on a busy machine
		go func() { _ = sendAll(client, data) }()
		server := <-accepted
		got, err := io.ReadAll(server)
		require.NoError(t, err)
		requireSame(t, data, got)
		expectShares(t, server, len(data))
	})
}

// Connections beyond that go on untouched, and those of others are relayed as ever.
func TestAClientThatAsksSilentServersTakesNobodysPlace(t *testing.T) {
	const most = 64
	l := newLab(t)
	l.start(t, l.client)
	guest := l.Pod("guest-1-1")
	require.NoError(t, l.proxy.Apply(t.Context(), []proxy.Client{clientAt(t, l.client), clientAt(t, guest)}))
	address, accepted := listen(t, l.server, 4)
	l.nft(t, l.Nodes[1], "add table inet silent; add chain inet silent forward { type filter hook forward priority 0; }; "+
		"add rule inet silent forward tcp dport 9 counter drop")
	ctx, stop := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	t.Cleanup(func() { stop(); asking.Wait() })
	for range 4 * most {
		asking.Go(func() {
			_, _ = l.client.DialBy(ctx, network.TCP, "tcp", netip.AddrPortFrom(address.Addr(), 9).String()) // nobody answers
		})
	}
	testutil.Eventually(t, 3*time.Second, "servers are asked", func() bool { return l.proxy.Connections() >= most })
	time.Sleep(200 * time.Millisecond)
	require.Equal(t, most, l.proxy.Connections())
	l.client = guest
	l.dial(t, address)
	multipath, err := (<-accepted).MultipathTCP()
	require.NoError(t, err)
	require.True(t, multipath)
}

func TestAClosedPortIsRefusedAtOnce(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		began := time.Now()
		_, err := l.client.DialBy(t.Context(), network.TCP, "tcp", netip.AddrPortFrom(addressesOf(l.server)[version/6], 9).String())
		require.ErrorIs(t, err, unix.ECONNREFUSED)
		require.Less(t, time.Since(began), time.Second)
		require.Zero(t, l.proxy.Connections())
	})
}

func TestAnAddressThatNobodyHasIsUnreachable(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
		defer stop()
		nobody := map[int]string{4: "10.244.99.2:80", 6: "[fd00:244:99::2]:80"}[version]
		_, err := l.client.DialBy(ctx, network.TCP, "tcp", nobody)
		require.Error(t, err)
		require.NotErrorIs(t, err, context.DeadlineExceeded)
	})
}

// both opens a connection and returns its ends.
func (l *lab) both(t *testing.T, version int) (client, server *net.TCPConn) {
	t.Helper()
	address, accepted := listen(t, l.server, version)
	client = l.dial(t, address)
	server = <-accepted
	t.Cleanup(func() { server.Close() })
	multipath, err := server.MultipathTCP()
	require.NoError(t, err)
	require.True(t, multipath)
	return client, server
}

// expectReset expects that an end hears of a reset.
func expectReset(t *testing.T, end *net.TCPConn) {
	t.Helper()
	require.NoError(t, end.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err := end.Read(make([]byte, 1))
	require.ErrorIs(t, err, unix.ECONNRESET)
}

func TestAResetOfTheClientResetsTheServer(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		client, server := l.both(t, version)
		require.NoError(t, client.SetLinger(0))
		require.NoError(t, client.Close())
		expectReset(t, server)
		l.expectConnections(t, 0)
	})
}

func TestAResetOfTheServerResetsTheClient(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		client, server := l.both(t, version)
		// What was not read makes a reset of the end.
		_, err := client.Write(make([]byte, 1000))
		require.NoError(t, err)
		time.Sleep(200 * time.Millisecond)
		require.NoError(t, server.Close())
		expectReset(t, client)
		l.expectConnections(t, 0)
	})
}

func (l *lab) expectConnections(t *testing.T, count int) {
	t.Helper()
	testutil.Retry(t, 5*time.Second, func() error {
		if got := l.proxy.Connections(); got != count {
			return errCount(got)
		}
		return nil
	})
}

func TestWhatIsHalfClosedGoesOnInTheOtherDirection(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		client, server := l.both(t, version)
		for _, way := range [][2]*net.TCPConn{{server, client}, {client, server}} {
			require.NoError(t, sendAll(way[0], []byte("all")))
			got, err := io.ReadAll(way[1])
			require.NoError(t, err)
			require.Equal(t, "all", string(got))
			time.Sleep(100 * time.Millisecond)
		}
		l.expectConnections(t, 0)
	})
}

func TestAServerThatReadsNothingStopsItsClient(t *testing.T) {
	l := newLab(t)
	l.start(t, l.client)
	client, server := l.both(t, 4)
	require.NoError(t, client.SetWriteDeadline(time.Now().Add(8*time.Second)))
	data := randomBytes(200 << 20)
	sent, err := client.Write(data)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Less(t, sent, 100<<20)
	require.NoError(t, client.CloseWrite())
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data[:sent], got))
}

func TestAPeerWithoutMPTCPIsLeftAloneFromTheSecondConnectionOn(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		require.NoError(t, l.server.Sysctl("net.mptcp.enabled", "0"))
		address, accepted := listenPlain(t, l.server, version)
		for _, relayed := range []int{1, 1, 1} {
			client := l.dial(t, address)
			server := <-accepted
			require.NoError(t, sendAll(client, []byte("all")))
			require.NoError(t, server.SetReadDeadline(time.Now().Add(5*time.Second)))
			got, err := io.ReadAll(server)
			require.NoError(t, err)
			require.Equal(t, "all", string(got))
			l.expectConnections(t, relayed)
		}
	})
}

func TestWhatBecameOfConnectionsIsCounted(t *testing.T) {
	l := newLab(t)
	l.start(t, l.client)
	address, accepted := listen(t, l.server, 4)
	client := l.dial(t, address)
	server := <-accepted
	expect := func(when string, of map[int]uint64) {
		t.Helper()
		var want [programs.OutcomeReset + 1]uint64
		for kind, count := range of {
			want[kind] = count
		}
		testutil.Retry(t, 5*time.Second, func() error {
			counts, err := l.proxy.Outcomes()
			if err == nil && counts != want {
				err = fmt.Errorf("%s the counts are %v, not %v", when, counts, want)
			}
			return err
		})
	}
	expect("with one connection", map[int]uint64{programs.OutcomeRelayed: 1, programs.OutcomeNow: 1})
	require.NoError(t, errors.Join(client.Close(), server.Close()))
	expect("after its end", map[int]uint64{programs.OutcomeRelayed: 1})
	_, err := l.client.DialBy(t.Context(), network.TCP, "tcp", netip.AddrPortFrom(address.Addr(), 9).String())
	require.ErrorIs(t, err, unix.ECONNREFUSED)
	expect("after a refusal", map[int]uint64{programs.OutcomeRelayed: 1, programs.OutcomeNoAnswer: 1})
	require.NoError(t, l.server.Sysctl("net.mptcp.enabled", "0"))
	address, accepted = listenPlain(t, l.server, 4)
	for range 3 {
		l.dial(t, address)
		<-accepted
	}
	expect("with a peer without MPTCP", map[int]uint64{
		programs.OutcomeRelayed: 2, programs.OutcomeNoAnswer: 1, programs.OutcomePlainPeer: 2, programs.OutcomeNow: 1,
	})
}

func TestAClientThatSpeaksMPTCPIsLeftAlone(t *testing.T) {
	l := newLab(t)
	l.start(t, l.client)
	address, accepted := listen(t, l.server, 4)
	client, err := l.client.Dial(t.Context(), "tcp", address.String())
	require.NoError(t, err)
	defer client.Close()
	server := <-accepted
	defer server.Close()
	require.Zero(t, l.proxy.Connections())
}

func TestDrainingRelaysNothingNewAndEndsWithTheLastConnection(t *testing.T) {
	l := newLab(t)
	l.start(t, l.client)
	client, server := l.both(t, 4)
	drained := make(chan error, 1)
	go func() { drained <- l.proxy.Drain(t.Context()) }()
	address, accepted := listen(t, l.server, 4)
	testutil.Retry(t, 5*time.Second, func() error {
		late := l.dial(t, address)
		other := <-accepted
		multipath, err := other.MultipathTCP()
		if err == nil && !multipath {
			return nil
		}
		return errors.Join(errCount(l.proxy.Connections()), late.Close(), other.Close())
	})
	l.expectConnections(t, 1)
	l.dial(t, address)
	<-accepted
	require.Equal(t, 1, l.proxy.Connections())
	require.NoError(t, sendAll(client, []byte("all")))
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Equal(t, "all", string(got))
	select {
	case err := <-drained:
		t.Fatalf("drained with a connection that is half open: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	require.NoError(t, server.Close())
	require.NoError(t, <-drained)
}

func TestARefusalByTheNodesRulesIsTheClients(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		address, accepted := listen(t, l.server, version)
		// As policy engines judge: what comes in from the pod's interface, where it is forwarded.
		l.nft(t, l.Nodes[0], `add table inet judge; add chain inet judge forward { type filter hook forward priority 0; };
			add rule inet judge forward iifname `+l.client.HostInterface+` tcp dport `+portOf(address)+` reject with tcp reset`)
		_, err := l.client.DialBy(t.Context(), network.TCP, "tcp", address.String())
		require.ErrorIs(t, err, unix.ECONNREFUSED)
		require.Empty(t, accepted)
	})
}

func TestAConnectionThatIsForbiddenLaterStops(t *testing.T) {
	l := newLab(t)
	l.start(t, l.client)
	client, server := l.both(t, 4)
	_, err := client.Write([]byte("before"))
	require.NoError(t, err)
	_, err = io.ReadFull(server, make([]byte, 6))
	require.NoError(t, err)
	l.nft(t, l.Nodes[0], `add table inet judge; add chain inet judge forward { type filter hook forward priority 0; };
		add rule inet judge forward iifname `+l.client.HostInterface+` ip daddr `+l.server.IPv4+` drop`)
	_, err = client.Write([]byte("later"))
	require.NoError(t, err)
	require.NoError(t, server.SetReadDeadline(time.Now().Add(2*time.Second)))
	_, err = server.Read(make([]byte, 5))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// attach puts a program of this name where the agent would.
func (l *lab) attach(t *testing.T, name string, at ebpf.AttachType, anchor link.Anchor) {
	t.Helper()
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name, Type: ebpf.SchedCLS, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	require.NoError(t, err)
	t.Cleanup(func() { program.Close() })
	require.NoError(t, l.Nodes[0].Do(func() error {
		attached, err := link.AttachTCX(link.TCXOptions{
			Interface: indexOf(t, l.Nodes[0], l.client.HostInterface), Program: program, Attach: at, Anchor: anchor,
		})
		if err == nil {
			t.Cleanup(func() { attached.Close() })
		}
		return err
	}))
}

// names are those of the programs at the client's interface, in their order.
func (l *lab) names(t *testing.T, at ebpf.AttachType) (names []string) {
	t.Helper()
	require.NoError(t, l.Nodes[0].Do(func() error {
		query, err := link.QueryPrograms(link.QueryOptions{Target: indexOf(t, l.Nodes[0], l.client.HostInterface), Attach: at})
		require.NoError(t, err)
		for _, attached := range query.Programs {
			program, err := ebpf.NewProgramFromID(attached.ID)
			require.NoError(t, err)
			info, err := program.Info()
			require.NoError(t, err)
			names = append(names, info.Name)
			program.Close()
		}
		return nil
	}))
	return names
}

func TestRulesSeeThePacketsOfTheRelayWhenTheyComeLater(t *testing.T) {
	l := newLab(t)
	l.start(t, l.client)
	l.attach(t, "from_endpoint", ebpf.AttachTCXIngress, link.Head())
	l.attach(t, "to_endpoint", ebpf.AttachTCXEgress, link.Tail())
	client, server := l.both(t, 4)
	require.NoError(t, l.proxy.Apply(t.Context(), []proxy.Client{clientAt(t, l.client)}))
	require.Equal(t, []string{"from_client", "from_endpoint"}, l.names(t, ebpf.AttachTCXIngress))
	require.Equal(t, []string{"to_endpoint", "to_client"}, l.names(t, ebpf.AttachTCXEgress))
	require.NoError(t, sendAll(client, []byte("all")))
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.Equal(t, "all", string(got))
}

func TestTheRelayLearnsOfASmallerMTUOnTheWay(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		client, server := l.both(t, version)
		_, err := l.server.Node.Run("ip", "link", "set", "dev", l.server.HostInterface, "mtu", "1300")
		require.NoError(t, err)
		data := randomBytes(4 << 20)
		go func() { _ = sendAll(client, data) }()
		require.NoError(t, server.SetReadDeadline(time.Now().Add(20*time.Second)))
		got, err := io.ReadAll(server)
		require.NoError(t, err)
		require.True(t, bytes.Equal(data, got))
	})
}

func TestAClientAtATapIsRelayed(t *testing.T) {
	forBoth(t, func(t *testing.T, version int) {
		l := newLab(t)
		l.start(t, l.client)
		require.NoError(t, l.proxy.ForgetPeers())
		client, server := l.both(t, version)
		data := randomBytes(4 << 20)
		for _, way := range [][2]*net.TCPConn{{client, server}, {server, client}} {
			go func() { _ = sendAll(way[0], data) }()
			got, err := io.ReadAll(way[1])
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, got))
		}
	})
}
