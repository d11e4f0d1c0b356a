// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/transport"
)

// unbuffered is everything for which a young connection needs no note of its own.
func unbuffered() *v1alpha1.Transport {
	of := everything()
	of.ReceiveBuffer = nil
	return of
}

// hasUnbuffered tells whether a socket has that.
func hasUnbuffered(got options) bool {
	wanted := everythingShown
	wanted.receiveBuffer = got.receiveBuffer
	return got == wanted
}

// hasNote tells whether the program keeps what the socket had before.
func (p *Part) hasNote(t *testing.T, connection net.Conn) (has bool) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		has = p.loaded.Value.TransportSockets.Lookup(uint32(fd), make([]byte, p.loaded.Value.TransportSockets.ValueSize())) == nil
	}))
	return has
}

// exceptBuffer is without what connections grow by themselves.
func exceptBuffer(of options) options {
	of.receiveBuffer = 0
	return of
}

// What lies with a socket costs a short connection more than its settings.
func TestAYoungConnectionHasItsSettingsAndNoNote(t *testing.T) {
	p := newPair(t, nil)
	p.serve(t, p.server.IPv4)
	client, server := p.connect(t, "TCP", p.server.IPv4)
	clientBefore, serverBefore := exceptBuffer(optionsOf(t, client)), exceptBuffer(optionsOf(t, server))
	p.apply(t, unbuffered(), unbuffered())
	client, server = p.connect(t, "TCP", p.server.IPv4)
	began := time.Now()
	ping(t, client, server)
	noted := p.part.hasNote(t, client) || p.part.hasNote(t, server)
	require.False(t, noted && time.Since(began) < 40*time.Millisecond, "a note of a connection that is young")
	require.True(t, hasUnbuffered(optionsOf(t, client)), "the client has %+v", optionsOf(t, client))
	got := optionsOf(t, server) // which has chosen how idle connections are probed
	require.Equal(t, []any{"cubic", 7000}, []any{got.congestion, got.userTimeout}, "of the server")
	p.apply(t, nil, nil)
	require.Equal(t, clientBefore, exceptBuffer(optionsOf(t, client)), "what the client has when the policy is gone")
	require.Equal(t, serverBefore, exceptBuffer(optionsOf(t, server)), "what the server has when the policy is gone")
}

// forgetUsual has the agent that comes next know no connections without a note, as earlier ones do.
func (l *lab) forgetUsual(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(l.part.loaded.Directory(), transport.TransportMapTransportUsual)))
}

func TestAnEarlierAgentGivesConnectionsTheirOwnBackThatWereYoungWhenTheLastOneEnded(t *testing.T) {
	l := newLab(t)
	before := exceptBuffer(optionsOf(t, l.dial(t, "TCP")))
	l.apply(t, unbuffered())
	young := l.dial(t, "TCP")
	require.NoError(t, l.part.Close())
	alone := l.dial(t, "TCP")
	for when, connection := range map[string]net.Conn{"just before the agent ended": young, "while no agent ran": alone} {
		require.True(t, hasUnbuffered(optionsOf(t, connection)), "one that began %s has %+v", when, optionsOf(t, connection))
	}
	l.forgetUsual(t)
	l.start(t)
	l.apply(t, unbuffered())
	l.apply(t, nil)
	require.Equal(t, before, exceptBuffer(optionsOf(t, young)), "what one has that began just before the agent ended")
	require.Equal(t, before, exceptBuffer(optionsOf(t, alone)), "what one has that began while no agent ran")
}

// One that sends nothing more is put back all the same, by way of other settings.
func TestAConnectionWithoutANoteHasItsOwnBackAfterTwoPolicies(t *testing.T) {
	l := newLab(t)
	before := exceptBuffer(optionsOf(t, l.dial(t, "TCP")))
	l.apply(t, unbuffered())
	connection := l.dial(t, "TCP")
	other := unbuffered()
	other.UserTimeout, other.Keepalive.Idle, other.MinRTO = after(9*time.Second), after(21*time.Second), nil
	l.apply(t, other)
	if got := optionsOf(t, connection); got.userTimeout != 9000 || got.idle != 21 {
		t.Errorf("after a change of the policy it has %+v", got)
	}
	l.expectTimers(t, connection, 200, 20)
	l.apply(t, nil)
	l.expectTimers(t, connection, 200, 200)
	require.Equal(t, before, exceptBuffer(optionsOf(t, connection)))
}

// dialWith opens a connection of plain TCP whose application prepares its socket.
func (l *lab) dialWith(t *testing.T, keepalive net.KeepAliveConfig, prepare func(fd int) error) (connection net.Conn) {
	t.Helper()
	require.NoError(t, l.client.Do(func() (err error) {
		dialer := net.Dialer{KeepAlive: -1, KeepAliveConfig: keepalive, Control: func(_, _ string, raw syscall.RawConn) error {
			var failed error
			return errors.Join(raw.Control(func(fd uintptr) { failed = prepare(int(fd)) }), failed)
		}}
		dialer.SetMultipathTCP(false)
		connection, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(l.server.IPv4, port))
		return err
	}))
	t.Cleanup(func() { _ = connection.Close() })
	return connection
}

func TestASocketWhoseApplicationHasChosenBeforeHasANote(t *testing.T) {
	l := newLab(t)
	l.apply(t, unbuffered())
	connection := l.dialWith(t, net.KeepAliveConfig{}, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 1234)
	})
	require.True(t, hasUnbuffered(optionsOf(t, connection)), "it has %+v", optionsOf(t, connection))
	require.True(t, l.part.hasNote(t, connection))
	l.apply(t, nil)
	require.Equal(t, 1234, optionsOf(t, connection).userTimeout)
}

// Programs in Go choose right after connecting.
func TestWhatAnApplicationChoosesForAYoungConnectionIsItsOwn(t *testing.T) {
	l := newLab(t)
	l.apply(t, unbuffered())
	keepalive := net.KeepAliveConfig{Enable: true, Idle: 33 * time.Second, Interval: 5 * time.Second, Count: 2}
	connection := l.dialWith(t, keepalive, func(int) error { return nil })
	time.Sleep(100 * time.Millisecond)
	l.exchange(t, connection)
	l.part.look(true)
	require.True(t, hasUnbuffered(optionsOf(t, connection)), "it has %+v", optionsOf(t, connection))
	l.apply(t, nil)
	if got := optionsOf(t, connection); got.keepalive != 1 || got.idle != 33 || got.interval != 5 || got.probes != 2 {
		t.Errorf("when the policy is gone it has %+v", got)
	}
}

// The first attempt has given the socket its settings: they are not its own.
func TestASocketThatConnectsAgainHasItsOwnBack(t *testing.T) {
	l := newLab(t)
	before := exceptBuffer(optionsOf(t, l.dial(t, "TCP")))
	l.apply(t, unbuffered())
	connection := l.dialWith(t, net.KeepAliveConfig{}, func(fd int) error {
		nobody := &unix.SockaddrInet4{Port: 5999, Addr: [4]byte(net.ParseIP(l.server.IPv4).To4())}
		for {
			switch err := unix.Connect(fd, nobody); err {
			case unix.ECONNREFUSED:
				return nil
			case unix.EINPROGRESS, unix.EALREADY, unix.EINTR:
				time.Sleep(time.Millisecond)
			default:
				return errors.Join(errors.New("nobody refuses the connection"), err)
			}
		}
	})
	l.exchange(t, connection)
	require.True(t, hasUnbuffered(optionsOf(t, connection)), "it has %+v", optionsOf(t, connection))
	l.apply(t, nil)
	require.Equal(t, before, exceptBuffer(optionsOf(t, connection)))
}
