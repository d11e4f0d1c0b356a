// SPDX-License-Identifier: Apache-2.0

package mptcpnl_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/mptcpnl"
)

func dial(t *testing.T, host *pair.Host) *mptcpnl.Client {
	t.Helper()
	file := host.Open()
	defer file.Close()
	client, err := mptcpnl.Dial(int(file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

func TestEndpointsAreAddedChangedAndDeleted(t *testing.T) {
	host, _ := pair.New(t)
	client := dial(t, host)
	want := []mptcpnl.Endpoint{
		{ID: 3, Address: host.IPv4, Port: 61001, Flags: mptcpnl.FlagSignal},
		{ID: 4, Address: host.IPv6, Port: 61001, Flags: mptcpnl.FlagSignal},
		{ID: 5, Address: netip.IPv6Unspecified(), Flags: mptcpnl.FlagSubflow},
	}
	for _, endpoint := range want {
		require.NoError(t, client.AddEndpoint(endpoint))
	}
	expectEndpoints(t, client, want)

	want[2].Flags |= mptcpnl.FlagBackup
	require.NoError(t, client.SetFlags(mptcpnl.Endpoint{ID: 5, Flags: want[2].Flags}))
	expectEndpoints(t, client, want)

	require.NoError(t, client.DeleteEndpoint(4))
	expectEndpoints(t, client, []mptcpnl.Endpoint{want[0], want[2]})

	require.NoError(t, client.FlushEndpoints())
	expectEndpoints(t, client, nil)
}

func expectEndpoints(t *testing.T, client *mptcpnl.Client, want []mptcpnl.Endpoint) {
	t.Helper()
	got, err := client.Endpoints()
	require.NoError(t, err)
	if !slices.Equal(got, want) {
		t.Fatalf("endpoints are %v, want %v", got, want)
	}
}

func TestARefusedEndpointNamesItsError(t *testing.T) {
	host, _ := pair.New(t)
	client := dial(t, host)
	endpoint := mptcpnl.Endpoint{Address: host.IPv4, Port: 61001, Flags: mptcpnl.FlagSignal}
	require.NoError(t, client.AddEndpoint(endpoint))
	if err := client.AddEndpoint(endpoint); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("adding an endpoint twice: %v, want EADDRINUSE", err)
	}
	if err := client.DeleteEndpoint(200); !errors.Is(err, unix.EINVAL) {
		t.Errorf("deleting an endpoint that is not there: %v, want EINVAL", err)
	}
}

func TestLimitsAreSet(t *testing.T) {
	host, _ := pair.New(t)
	client := dial(t, host)
	want := mptcpnl.Limits{Subflows: 7, AcceptedAddresses: 3}
	require.NoError(t, client.SetLimits(want))
	if got, err := client.Limits(); err != nil || got != want {
		t.Errorf("limits are %+v (%v), want %+v", got, err, want)
	}
	if err := client.SetLimits(mptcpnl.Limits{Subflows: 1000}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("setting a limit of 1000: %v, want EINVAL", err)
	}
}

func TestANamespaceThatIsNoNamespaceIsRefused(t *testing.T) {
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	if _, err := mptcpnl.Dial(int(file.Fd())); !errors.Is(err, unix.EINVAL) {
		t.Errorf("dialling into %s: %v, want EINVAL", os.DevNull, err)
	}
}

// receive waits for the first event that match accepts.
func receive[E mptcpnl.Event](t *testing.T, events <-chan mptcpnl.Event, match func(E) bool) E {
	t.Helper()
	timeout := time.After(pair.Wait)
	for {
		select {
		case event, open := <-events:
			if event, ok := event.(E); ok && match(event) {
				return event
			}
			if !open {
				t.Fatal("the subscription ended before the event came")
			}
		case <-timeout:
			t.Fatalf("no %T came within %s", *new(E), pair.Wait)
		}
	}
}

func subscribe(t *testing.T, host *pair.Host) <-chan mptcpnl.Event {
	t.Helper()
	file := host.Open()
	defer file.Close()
	subscription, err := mptcpnl.Subscribe(int(file.Fd()))
	require.NoError(t, err)
	events := make(chan mptcpnl.Event, 1000)
	go func() {
		defer close(events)
		for {
			received, err := subscription.Receive()
			if err != nil {
				return
			}
			for _, event := range received {
				events <- event
			}
		}
	}()
	t.Cleanup(func() {
		subscription.Close()
		for range events { // the goroutine has ended when the channel is closed
		}
	})
	return events
}

func localAddress(connection net.Conn) netip.AddrPort {
	return netip.MustParseAddrPort(connection.LocalAddr().String())
}

func ofKind(kind mptcpnl.Kind) func(mptcpnl.ConnectionEvent) bool {
	return func(event mptcpnl.ConnectionEvent) bool { return event.Kind == kind }
}

func subflowOfKind(kind mptcpnl.Kind) func(mptcpnl.SubflowEvent) bool {
	return func(event mptcpnl.SubflowEvent) bool { return event.Kind == kind }
}

func TestUserSpacePathManagement(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) { manage(t, version) })
	}
}

// manage takes one connection through all commands and events.
func manage(t *testing.T, version int) {
	here, there := pair.New(t)
	require.NoError(t, here.Sysctl("net.mptcp.pm_type", "1"))
	require.NoError(t, there.Sysctl("net.mptcp.pm_type", "1"))
	client, server := dial(t, here), dial(t, there)
	events, serverEvents := subscribe(t, here), subscribe(t, there)

	address := there.Serve(version)
	connection := here.Connect(address)
	began := receive(t, events, ofKind(mptcpnl.ConnectionEstablished))
	if began.Local != localAddress(connection) || began.Remote != address || began.ServerSide {
		t.Errorf("a connection from %s to %s began as %+v", connection.LocalAddr(), address, began)
	}
	served := receive(t, serverEvents, ofKind(mptcpnl.ConnectionEstablished))
	if served.Local != address || served.Remote != localAddress(connection) || !served.ServerSide {
		t.Errorf("a connection from %s to %s was served as %+v", connection.LocalAddr(), address, served)
	}

	local := mptcpnl.Endpoint{Address: here.Address(version)}
	require.NoError(t, client.CreateSubflow(began.Token, local, address))
	opened := receive(t, events, subflowOfKind(mptcpnl.SubflowEstablished))
	if opened.Token != began.Token || opened.Local.Addr() != local.Address || opened.Remote != address {
		t.Errorf("a subflow from %s to %s opened as %+v", local.Address, address, opened)
	}
	here.ExpectSubflows(connection, 2)

	require.NoError(t, client.SetBackup(began.Token, opened.Local, opened.Remote, true))
	prioritised := receive(t, serverEvents, subflowOfKind(mptcpnl.SubflowPriority))
	if prioritised.Local != opened.Remote || prioritised.Remote != opened.Local || !prioritised.Backup {
		t.Errorf("MP_PRIO on %+v arrived as %+v", opened, prioritised)
	}

	announced := mptcpnl.Endpoint{ID: 9, Address: there.Address(version), Flags: mptcpnl.FlagSignal}
	require.NoError(t, server.Announce(served.Token, announced))
	heard := receive(t, events, func(e mptcpnl.AddressEvent) bool { return e.Kind == mptcpnl.AddressAnnounced })
	if heard.ID != 9 || heard.Address.Addr() != announced.Address {
		t.Errorf("%s was heard as %+v", announced, heard)
	}
	require.NoError(t, server.Remove(served.Token, 9))
	receive(t, events, func(e mptcpnl.AddressEvent) bool { return e.Kind == mptcpnl.AddressRemoved && e.ID == 9 })

	require.NoError(t, client.DestroySubflow(began.Token, opened.Local, opened.Remote))
	closed := receive(t, events, subflowOfKind(mptcpnl.SubflowClosed))
	if closed.Local != opened.Local || closed.Remote != opened.Remote {
		t.Errorf("subflow %+v closed as %+v", opened, closed)
	}
	here.ExpectSubflows(connection, 1)

	connection.Close()
	receive(t, events, func(e mptcpnl.ConnectionEvent) bool {
		return e.Kind == mptcpnl.ConnectionClosed && e.Token == began.Token
	})
	if err := client.CreateSubflow(began.Token, local, address); err == nil {
		t.Error("a closed connection got a subflow")
	}
}

func TestListenersAreTold(t *testing.T) {
	_, there := pair.New(t)
	events := subscribe(t, there)
	for _, version := range []int{4, 6} {
		address := there.Serve(version)
		listener := receive(t, events, func(e mptcpnl.ListenerEvent) bool { return e.Kind == mptcpnl.ListenerCreated })
		if listener.Address != address {
			t.Errorf("listener on %s, want %s", listener.Address, address)
		}
	}
}

func TestSocketsAreFound(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			here, there := pair.New(t)
			require.NoError(t, here.Sysctl("net.mptcp.pm_type", "1"))
			address := there.Serve(version)
			require.NoError(t, dial(t, there).AddEndpoint(mptcpnl.Endpoint{Address: there.Address(version), Port: 61001, Flags: mptcpnl.FlagSignal}))
			connection := here.Connect(address)
			token, found := here.Token(connection.LocalAddr())
			if !found {
				t.Fatal("the connection is not listed")
			}
			require.NoError(t, dial(t, here).CreateSubflow(token, mptcpnl.Endpoint{Address: here.Address(version)}, address))
			here.ExpectSubflows(connection, 2)

			expectRoles(t, here.Subflows(connection.LocalAddr()), true)
			expectRoles(t, there.Subflows(connection.RemoteAddr()), false)
			var listeners []netip.AddrPort
			require.NoError(t, there.Diagnostics().EachListener(func(at netip.AddrPort) bool {
				listeners = append(listeners, at)
				return true
			}))
			if !slices.Equal(listeners, []netip.AddrPort{address}) {
				t.Errorf("listeners are %v, want %v alone", listeners, address)
			}
		})
	}
}

// expectRoles expects two subflows, one of them the first, all opened by the
// client.
func expectRoles(t *testing.T, subflows []mptcpnl.Subflow, client bool) {
	t.Helper()
	var first int
	for _, subflow := range subflows {
		if subflow.First {
			first++
		}
		if subflow.Initiator != client {
			t.Errorf("initiator of %+v: want %t", subflow, client)
		}
	}
	if len(subflows) != 2 || first != 1 {
		t.Errorf("subflows are %+v, want two and one of them the first", subflows)
	}
}

func TestASubflowIsFoundByItsEnds(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			here, there := pair.New(t)
			address := there.ServeAt(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)) // for IPv4 too
			address = netip.AddrPortFrom(there.Address(version), address.Port())
			connection := here.Connect(address)
			pair.Eventually(t, func() bool { return len(here.Subflows(connection.LocalAddr())) == 1 }, func() string { return "there is no subflow" })
			want := here.Subflows(connection.LocalAddr())[0]
			var got mptcpnl.Subflow
			pair.Eventually(t, func() bool {
				var found bool
				var err error
				got, found, err = here.Diagnostics().Subflow(want.Local, want.Remote)
				require.NoError(t, err)
				return found && got.TCP.SentBytes >= 80 && got.TCP.ReceivedBytes >= 80
			}, func() string { return fmt.Sprintf("found %+v, which moves nothing", got) })
			if got.Token != want.Token || !got.First || !got.Established || got.Local != want.Local || got.Remote != want.Remote {
				t.Errorf("found %+v, want %+v", got, want)
			}
			if _, found, err := there.Diagnostics().Subflow(want.Remote, want.Local); err != nil || !found {
				t.Errorf("the peer does not find it: %v", err)
			}
			if got, found, err := here.Diagnostics().Subflow(want.Local, netip.AddrPortFrom(want.Remote.Addr(), 1)); err != nil || found {
				t.Errorf("found %+v (%v), where there is none", got, err)
			}
		})
	}
}

// TestBothEndsTellTheSameOfAConnection compares what each host reads of its own
// sockets.
func TestBothEndsTellTheSameOfAConnection(t *testing.T) {
	here, there := pair.New(t)
	require.NoError(t, here.Sysctl("net.mptcp.pm_type", "1"))
	address := there.Serve(4)
	connection := here.Connect(address)
	token, found := here.Token(connection.LocalAddr())
	if !found {
		t.Fatal("the connection is not listed")
	}
	client := dial(t, here)
	require.NoError(t, client.CreateSubflow(token, mptcpnl.Endpoint{Address: here.IPv4}, address))
	here.ExpectSubflows(connection, 2)
	there.ExpectSubflows(remoteEnd{connection}, 2)
	joined := further(t, here.Subflows(connection.LocalAddr()))
	require.NoError(t, client.SetBackup(token, joined.Local, joined.Remote, true))

	var mirrored mptcpnl.Subflow
	pair.Eventually(t, func() bool {
		mirrored = further(t, there.Subflows(connection.RemoteAddr()))
		return mirrored.BackupAsked
	}, func() string { return fmt.Sprintf("the peer was not asked for a backup: %+v", mirrored) })
	joined = further(t, here.Subflows(connection.LocalAddr()))

	if joined.RemoteToken == 0 || joined.RemoteToken != mirrored.Token {
		t.Errorf("the peer's token is %08x to us and %08x to the peer", joined.RemoteToken, mirrored.Token)
	}
	if !joined.TCP.Scaled || joined.TCP.SendScale != mirrored.TCP.ReceiveScale || joined.TCP.ReceiveScale != mirrored.TCP.SendScale {
		t.Errorf("window scales are %+v here and %+v there", joined.TCP, mirrored.TCP)
	}
	if joined.TCP.ReceiveScale == 0 || joined.TCP.RTT <= 0 || joined.TCP.RTT > time.Second {
		t.Errorf("a link without delay has %+v", joined.TCP)
	}
	expectSameSequences(t, known(t, here, connection.LocalAddr()), known(t, there, connection.RemoteAddr()))
}

// remoteEnd is a connection as its peer sees it.
type remoteEnd struct{ net.Conn }

func (r remoteEnd) LocalAddr() net.Addr { return r.RemoteAddr() }

// further is the subflow that the connection did not begin with.
func further(t *testing.T, subflows []mptcpnl.Subflow) mptcpnl.Subflow {
	t.Helper()
	at := slices.IndexFunc(subflows, func(subflow mptcpnl.Subflow) bool { return !subflow.First })
	if at < 0 {
		t.Fatalf("there is no further subflow: %+v", subflows)
	}
	return subflows[at]
}

func known(t *testing.T, host *pair.Host, local net.Addr) mptcpnl.Connection {
	t.Helper()
	connections, err := host.Diagnostics().Connections(0)
	require.NoError(t, err)
	for _, connection := range connections {
		if connection.Local.String() == local.String() {
			return connection
		}
	}
	t.Fatalf("no connection at %s among %+v", local, connections)
	return mptcpnl.Connection{}
}

func expectSameSequences(t *testing.T, here, there mptcpnl.Connection) {
	t.Helper()
	if !here.SequencesKnown {
		return // kernels before 6.5 do not count bytes
	}
	if here.FirstSent != there.FirstReceived || here.FirstReceived != there.FirstSent {
		t.Errorf("data begins at %+v here and %+v there", here, there)
	}
}
