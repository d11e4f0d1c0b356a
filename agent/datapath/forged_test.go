// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf/packettest"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
	"braid.dev/braid/internal/testutil"
)

// forge sends SYNs with another's address to somebody who never answers.
func forge(t *testing.T, forger *network.Pod, from, to netip.Addr, count int) {
	t.Helper()
	require.NoError(t, forger.Do(func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return fmt.Errorf("opening a raw socket: %w", err)
		}
		defer func() { _ = unix.Close(socket) }()
		for i := range count {
			frame := packettest.Segment{
				From: netip.AddrPortFrom(from, uint16(1024+i)), To: netip.AddrPortFrom(to, 80),
				Sequence: 7, Flags: 2, Window: 1 << 15, Options: []byte{30, 4, 1, 1},
			}.Frame()
			if err := unix.Sendto(socket, frame[14:], 0, &unix.SockaddrInet4{Addr: to.As4()}); err != nil {
				return fmt.Errorf("sending: %w", err)
			}
		}
		return nil
	}))
}

// The victim's address is that of a pod whose interface is not known, so that nothing but
// the answers tells its own SYNs from those of others.
func TestForgedSYNsDoNotKeepTheirVictimFromBeingFollowed(t *testing.T) {
	l := newLab(t, threePaths, 2, Options{})
	states := l.states(t)
	for i := range states[0].Endpoints {
		states[0].Endpoints[i].Interface = 0
	}
	for node, state := range states {
		l.apply(t, node, state)
	}
	victim, forger, server := l.Pod("pod-1-1"), l.Pod("pod-1-2"), l.Pod("pod-2-1")
	nobody := netip.MustParseAddr(server.IPv4).As4()
	nobody[3] = 200
	const forged = 20_000
	for range 2 {
		forge(t, forger, netip.MustParseAddr(victim.IPv4), netip.AddrFrom4(nobody), forged)
	}
	for node := range l.Nodes {
		begun := uint32(0)
		require.NoError(t, entries.Each(l.datapaths[node].loaded.Value.maps().RecentHandshakes, func(_ *uint32, recent *uplink.ToUplinkRecentHandshakes) { begun = recent.Begun }))
		if begun < forged {
			t.Errorf("node %d saw %d SYNs", node+1, begun)
		}
	}
	serve(t, server, 4)
	limitSubflows(t, victim, 1)
	r := start(t, victim, server, 4, traffic.Options{Duration: time.Second, Connections: 3})
	r.awaitConnections()
	for node := range l.Nodes {
		if counts := pathCounts(l.awaitSubflows(t, node, 3)); len(counts) != 3 {
			t.Errorf("node %d: the victim's flows are on %v", node+1, counts)
		}
	}
	r.wait(t)
}

// dieSilently closes connections of a pod without a word to the other end.
func dieSilently(t *testing.T, pod *network.Pod, connections ...net.Conn) {
	t.Helper()
	run(t, pod, "ip", "rule", "add", "pref", "1", "blackhole")
	for _, connection := range connections {
		require.NoError(t, connection.(*net.TCPConn).SetLinger(0))
		require.NoError(t, connection.Close())
	}
	time.Sleep(100 * time.Millisecond)
	run(t, pod, "ip", "rule", "del", "pref", "1")
}

func TestPortsThatAreUsedAgainAfterASilentDeathAreANewFlow(t *testing.T) {
	l := newLab(t, threePaths, 1, Options{})
	l.applyAll(t)
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	listener, err := server.Listen(t.Context(), "tcp", net.JoinHostPort(server.IPv4, port))
	require.NoError(t, err)
	defer listener.Close()
	dial := func() (here, there net.Conn) {
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(client.IPv4), Port: 45000}}
		dialer.SetMultipathTCP(true)
		require.NoError(t, client.Do(func() (err error) {
			here, err = dialer.DialContext(context.Background(), "tcp4", listener.Addr().String())
			return err
		}))
		there, err := listener.Accept()
		require.NoError(t, err)
		_, err = here.Write([]byte("hello"))
		require.NoError(t, err)
		return here, there
	}
	here, there := dial()
	before := l.awaitSubflows(t, 0, 1)[0]
	dieSilently(t, server, there)
	dieSilently(t, client, here)
	here, there = dial()
	defer here.Close()
	defer there.Close()
	testutil.Retry(t, 2*time.Second, func() error {
		at1, at2 := living(l.flows(t, 0)), living(l.flows(t, 1))
		if len(at1) != 1 || len(at2) != 1 || at1[0].Token == before.Token || at1[0].Path == before.Path || at1[0].Path != at2[0].Path {
			return fmt.Errorf("the flows were%s\nand are%s\nand%s", describe([]Flow{before}), describe(at1), describe(at2))
		}
		return nil
	})
}
