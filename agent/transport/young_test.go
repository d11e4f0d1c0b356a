// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/transport"
	"braid.dev/braid/internal/testutil"
)

// hasConversation tells whether the program keeps what the socket's ends ask each other.
func (p *pair) hasConversation(t *testing.T, connection net.Conn) (has bool) {
	t.Helper()
	raw, err := connection.(*net.TCPConn).SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		has = p.part.loaded.Value.TransportConversations.Lookup(uint32(fd), make([]byte, p.part.loaded.Value.TransportConversations.ValueSize())) == nil
	}))
	return has
}

// ping has a byte go each way.
func ping(t *testing.T, client, server net.Conn) {
	t.Helper()
	for _, ends := range [][2]net.Conn{{client, server}, {server, client}} {
		_, err := ends[0].Write([]byte{1})
		require.NoError(t, err)
		_, err = ends[1].Read(make([]byte, 1))
		require.NoError(t, err)
	}
}

// What lies with a socket for requests costs a connection more than anything else of them, and
// an initial window is asked for and given without.
func TestAShortConnectionHasNoConversation(t *testing.T) {
	p := newPair(t, allOnNet1)
	p.serve(t, p.server.IPv4)
	p.apply(t, asksForAll(), acceptsAll("0.0.0.0/0"))
	client, server := p.connect(t, "TCP", p.server.IPv4)
	began := time.Now()
	ping(t, client, server)
	asks, hears := p.hasConversation(t, client), p.hasConversation(t, server)
	if time.Since(began) < 40*time.Millisecond { // and not a machine on which it was no short one
		require.False(t, asks, "of the client")
		require.False(t, hears, "of the server")
	}
	testutil.Eventually(t, 5*time.Second, "conversations of a connection that lasts", func() bool {
		ping(t, client, server)
		return p.hasConversation(t, client) && p.hasConversation(t, server)
	})
	all, loaded := p.part.requests()
	require.True(t, loaded)
	require.EqualValues(t, 1, all.honoured[transport.RequestInitialWindow], "windows that the server gave")
}

// Who asks for an initial window alone has it, young or not, and asks for more when its policy does.
func TestAWindowIsGivenToWhoAsksForNothingElse(t *testing.T) {
	p := newPair(t, allOnNet1)
	alone := &v1alpha1.Transport{Request: &v1alpha1.TransportRequest{InitialWindow: new(int32(40))}}
	for _, address := range []string{p.server.IPv4, p.server.IPv6} {
		p.serve(t, address)
		p.apply(t, alone, acceptsAll("0.0.0.0/0", "::/0"))
		client, server := p.connect(t, "TCP", address)
		require.EqualValues(t, 40, state(t, server).window, "to %s", address)
		ping(t, client, server)
		p.apply(t, asksForAll(), acceptsAll("0.0.0.0/0", "::/0"))
		testutil.Eventually(t, 10*time.Second, "the user timeout that is asked for later", func() bool {
			ping(t, client, server)
			return state(t, server).userTimeout == 7000
		})
	}
}
