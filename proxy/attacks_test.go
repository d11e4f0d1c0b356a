// SPDX-License-Identifier: Apache-2.0

package proxy_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	programs "braid.dev/braid/bpf/proxy"
	"braid.dev/braid/e2e/testlab"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/testutil"
	"braid.dev/braid/proxy"
)

// newAttack has the connections of two clients of one node relayed. The first one, a pod that
// may do whatever it likes in its own network namespace, attacks; the other one, a VM, is to
// notice nothing.
func newAttack(t *testing.T) (l *lab, attacker, victim *network.Pod) {
	t.Helper()
	l = newLab(t)
	l.mostWaiting = testWaiting
	attacker, victim = l.Pod("pod-1-1"), l.Pod("guest-1-1")
	l.start(t, attacker)
	require.NoError(t, l.proxy.Apply(t.Context(), []proxy.Client{clientAt(t, attacker), clientAt(t, victim)}))
	l.client = victim
	return l, attacker, victim
}

// expectRelayed has the victim send by a connection, which is relayed and arrives whole.
func (l *lab) expectRelayed(t *testing.T, client *net.TCPConn, server *net.TCPConn) {
	t.Helper()
	multipath, err := server.MultipathTCP()
	require.NoError(t, err)
	require.True(t, multipath, "it is not relayed")
	data := randomBytes(4 << 20)
	failed := make(chan error, 1)
	go func() { failed <- sendAll(client, data) }()
	require.NoError(t, server.SetReadDeadline(time.Now().Add(time.Minute)))
	got, err := io.ReadAll(server)
	require.NoError(t, err)
	require.NoError(t, <-failed)
	require.True(t, bytes.Equal(data, got))
}

// segments are from one address and many ports, of which no two are of the same connection,
// with sequence numbers at random.
func segments(count int, from netip.Addr, to netip.AddrPort, flags byte) []testlab.Forgery {
	all := make([]testlab.Forgery, count)
	for i := range all {
		all[i] = testlab.Forgery{
			From: netip.AddrPortFrom(from, uint16(1024+i%60_000)), To: netip.AddrPortFrom(to.Addr(), to.Port()+uint16(i/60_000)),
			Flags: flags, Sequence: rand.Uint32(), Answer: rand.Uint32(),
		}
	}
	return all
}

// The table of what goes on untouched is all clients' together.
func TestAFloodOfSYNsLeavesRoomInTheTable(t *testing.T) {
	l, attacker, _ := newAttack(t)
	nobody := netip.AddrPortFrom(netip.MustParseAddr(l.server.IPv4).Next(), 80)
	for range 6 { // what comes faster than it is read goes on without an entry
		testlab.Forge(t, attacker, segments(2000, addressesOf(attacker)[0], nobody, testlab.SYN)...)
		nobody = netip.AddrPortFrom(nobody.Addr(), nobody.Port()+1)
		time.Sleep(200 * time.Millisecond)
	}
	testutil.Eventually(t, 20*time.Second, "nothing waits for a server", func() bool { return l.proxy.Connections() == 0 })
	count, err := l.proxy.Flows()
	require.NoError(t, err)
	require.Greater(t, count, 1000, "the flood was not seen")
	require.LessOrEqual(t, count, proxy.MostUntouched)
}

func TestAFloodOfSYNsTakesNobodysPlace(t *testing.T) {
	l, attacker, victim := newAttack(t)
	address, accepted := listen(t, l.server, 4)
	own, others := addressesOf(attacker)[0], addressesOf(victim)[0]
	for name, flood := range map[string][]testlab.Forgery{
		"to a port that is open":                    segments(20_000, own, address, testlab.SYN),
		"to addresses that nobody has":              segments(80_000, own, netip.AddrPortFrom(netip.MustParseAddr(l.server.IPv4).Next(), 80), testlab.SYN), // more than the table has
		"from the address of another client":        segments(20_000, others, address, testlab.SYN),
		"of acknowledgements that belong to no one": segments(20_000, own, address, testlab.ACK),
	} {
		t.Run(name, func(t *testing.T) {
			testlab.Forge(t, attacker, flood...)
			client := l.dial(t, address)
			l.expectRelayed(t, client, acceptedFrom(t, accepted, client))
		})
	}
}

// The ring of held SYNs is all clients' together, and fills while the proxy has no processor.
func TestAFloodThatIsNotReadYetLeavesRoomForTheSYNsOfOthers(t *testing.T) {
	l, attacker, _ := newAttack(t)
	address, accepted := listen(t, l.server, 4)
	resume := sync.OnceFunc(l.proxy.Pause())
	t.Cleanup(resume)
	testlab.Forge(t, attacker, segments(20_000, addressesOf(attacker)[0], address, testlab.SYN)...)
	time.AfterFunc(500*time.Millisecond, resume)
	client := l.dial(t, address)
	l.expectRelayed(t, client, acceptedFrom(t, accepted, client))
	counts, err := l.proxy.Outcomes()
	require.NoError(t, err)
	require.Greater(t, counts[programs.OutcomeNoRoom], uint64(10_000), "the flood did not fill what its client may fill")
}

// Otherwise pods that die while they flood would fill the table, and nobody else were relayed.
func TestNothingIsCountedOfAClientThatIsGone(t *testing.T) {
	l, attacker, victim := newAttack(t)
	count := l.proxy.CountReads(clientAt(t, attacker).Interface)
	require.NoError(t, count())
	require.NoError(t, l.proxy.Apply(t.Context(), []proxy.Client{clientAt(t, victim)}))
	require.NoError(t, count())
	counts, err := l.proxy.Counted()
	require.NoError(t, err)
	require.Equal(t, 2, counts, "the victim's")
}

// acceptedFrom is the server's end of a connection; others' are closed.
func acceptedFrom(t *testing.T, accepted <-chan *net.TCPConn, client *net.TCPConn) *net.TCPConn {
	t.Helper()
	for {
		select {
		case server := <-accepted:
			if server.RemoteAddr().String() == client.LocalAddr().String() {
				return server
			}
			server.Close()
		case <-time.After(10 * time.Second):
			t.Fatal("the server accepted no such connection")
		}
	}
}

// The proxy answers for whoever has the interface, so the address alone gives nobody a relay.
func TestNobodyIsRelayedInTheNameOfAnother(t *testing.T) {
	l, attacker, victim := newAttack(t)
	address, accepted := listen(t, l.server, 4)
	testlab.Forge(t, attacker, segments(100, addressesOf(victim)[0], address, testlab.SYN)...)
	time.Sleep(500 * time.Millisecond)
	require.Zero(t, l.proxy.Connections())
	select {
	case connection := <-accepted:
		t.Fatalf("%s was accepted", connection.RemoteAddr())
	default:
	}
}

func TestForgedSegmentsEndNoRelayedConnection(t *testing.T) {
	l, attacker, _ := newAttack(t)
	address, accepted := listen(t, l.server, 4)
	client := l.dial(t, address)
	server := acceptedFrom(t, accepted, client)
	ends := client.LocalAddr().(*net.TCPAddr).AddrPort()
	for _, flags := range []byte{testlab.RST, testlab.RST | testlab.ACK, testlab.FIN | testlab.ACK, testlab.SYN, testlab.SYN | testlab.ACK} {
		for _, way := range [][2]netip.AddrPort{{ends, address}, {address, ends}} {
			forged := segments(500, way[0].Addr(), way[1], flags)
			for i := range forged {
				forged[i].From = way[0]
			}
			testlab.Forge(t, attacker, forged...)
		}
	}
	// Whoever knows the very numbers has the wrong interface all the same.
	testlab.Forge(t, attacker, testlab.Forgery{From: ends, To: address, Flags: testlab.RST | testlab.ACK, Sequence: nextSequence(t, client)})
	time.Sleep(100 * time.Millisecond)
	l.expectRelayed(t, client, server)
}

// The proxy's memory is everybody's: whoever has it fill with what nobody reads loses that, and
// gets no further relays meanwhile.
func TestClientsThatReadNothingTakeNobodysMemory(t *testing.T) {
	l, attacker, victim := newAttack(t)
	require.NoError(t, l.proxy.Apply(t.Context(), []proxy.Client{
		tenantsClient(t, attacker, "attackers"), tenantsClient(t, victim, "victims"),
	}))
	begin := make(chan struct{})
	address := l.serveEndlessly(t, begin)
	client := l.dial(t, address)
	require.NoError(t, client.SetReadDeadline(time.Now().Add(2*time.Minute)))
	for range 60 {
		connection, err := attacker.DialBy(t.Context(), network.TCP, "tcp", address.String())
		require.NoError(t, err)
		require.NoError(t, connection.(*net.TCPConn).SetReadBuffer(4096)) // so that the relay's are full early
		t.Cleanup(func() { connection.Close() })
	}
	testutil.Eventually(t, 10*time.Second, "all are relayed", func() bool { return l.proxy.Connections() == 61 })
	close(begin)
	for begun := time.Now(); time.Since(begun) < 5*time.Second; {
		_, err := io.CopyN(io.Discard, client, 1<<20)
		require.NoError(t, err, "the victim's connection ended")
		require.Less(t, l.proxy.Waiting(), 3*testWaiting)
	}
	require.NotZero(t, l.proxy.Reset())
}

const testWaiting = 16 << 20

func tenantsClient(t *testing.T, pod *network.Pod, tenant string) proxy.Client {
	t.Helper()
	client := clientAt(t, pod)
	client.Tenant = tenant
	return client
}

// serveEndlessly has the server send to everybody once it may, for as long as they take it.
func (l *lab) serveEndlessly(t *testing.T, begin <-chan struct{}) netip.AddrPort {
	t.Helper()
	listener, err := l.server.Listen(t.Context(), "tcp", netip.AddrPortFrom(addressesOf(l.server)[0], 0).String())
	require.NoError(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer connection.Close()
				<-begin
				for data := make([]byte, 1<<20); err == nil; {
					_, err = connection.Write(data)
				}
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// nextSequence is what a socket sends next, which its peer would take.
func nextSequence(t *testing.T, connection *net.TCPConn) (sequence uint32) {
	t.Helper()
	const sendQueue, off = 2, -1
	raw, err := connection.SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) {
		socket := int(fd)
		failed = unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1)
		failed = errors.Join(failed, unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, sendQueue))
		number, err := unix.GetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
		sequence = uint32(number)
		failed = errors.Join(failed, err, unix.SetsockoptInt(socket, unix.IPPROTO_TCP, unix.TCP_REPAIR, off))
	}))
	require.NoError(t, failed)
	return sequence
}
