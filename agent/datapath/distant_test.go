// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
)

// talk is a connection on which a pod sends a little, or much, and is answered as much, time and again.
type talk struct{ bytes atomic.Int64 }

const (
	little, much = 100, 4 << 20
	talkPause    = 5 * time.Millisecond
)

func startTalk(t *testing.T, client, server *network.Pod) *talk {
	t.Helper()
	listener, err := server.Listen(t.Context(), "tcp", net.JoinHostPort(server.IPv4, "0"))
	require.NoError(t, err)
	echoed := make(chan error, 1)
	go func() {
		connection, err := listener.Accept()
		if err == nil {
			_, err = io.Copy(connection, connection)
			err = errors.Join(err, connection.Close())
		}
		echoed <- err
	}()
	connection, err := client.Dial(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	talks, stop, ended := &talk{}, make(chan struct{}), make(chan error, 1)
	talks.bytes.Store(little)
	go func() { ended <- talks.run(connection, stop) }()
	t.Cleanup(func() {
		close(stop)
		require.NoError(t, errors.Join(<-ended, connection.Close(), <-echoed, listener.Close()))
	})
	return talks
}

func (t *talk) run(connection net.Conn, stop chan struct{}) error {
	buffer := make([]byte, much)
	for {
		select {
		case <-stop:
			return nil
		case <-time.After(talkPause):
		}
		size := t.bytes.Load()
		sent := make(chan error, 1)
		go func() {
			_, err := connection.Write(make([]byte, size))
			sent <- err
		}()
		_, err := io.ReadFull(connection, buffer[:size])
		if err := errors.Join(err, <-sent); err != nil {
			return err
		}
	}
}

// The kernel has the first subflow carry what is sent while nothing is under way.
func TestAConnectionThatMovesLittleRestsOffADistantPath(t *testing.T) {
	t.Parallel()
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	talks := startTalk(t, client, server)
	l.awaitSubflows(t, 0, 3)
	var first string
	for _, path := range threePaths {
		if l.sentIn(t, 0, 200*time.Millisecond).share(path) > most {
			first = path
		}
	}
	require.NotEmpty(t, first)
	l.setHealth(t, PeerHealth{Distant: map[string]bool{first: true}})
	for node := range l.Nodes {
		l.leaves(t, node, first)
	}
	talks.bytes.Store(much)
	l.movesTo(t, "to all paths as it moves much", 0, threePaths...)
	talks.bytes.Store(little)
	for node := range l.Nodes {
		l.leaves(t, node, first)
	}
	l.setHealth(t, PeerHealth{Distant: map[string]bool{first: false}})
	l.movesTo(t, "back, as the path is distant no more", 0, first)
	l.movesTo(t, "and the answers", 1, first)
}

// leaves waits until a node sends nothing by a path.
func (l *lab) leaves(t *testing.T, node int, path string) {
	t.Helper()
	var sent counted
	for began := time.Now(); time.Since(began) < 2*time.Second; {
		if sent = l.sentIn(t, node, 50*time.Millisecond); sent.total() > 10*little && sent.share(path) < 1-most {
			t.Logf("node %d: within %s", node+1, time.Since(began).Round(time.Millisecond))
			return
		}
	}
	t.Fatalf("node %d sends %v, and not by others than %s", node+1, sent, path)
}

func TestPathsStayDistantUntilANewAgentKnowsMore(t *testing.T) {
	t.Parallel()
	l, _, _ := newPair(t, Options{})
	l.applyAll(t)
	distant := func() []bool {
		var value uplink.ToUplinkHealth
		peer := l.datapaths[0].peers.entries[l.Nodes[1].NodeName()]
		require.NoError(t, l.datapaths[0].peers.maps.Health.Lookup(peer.number, &value))
		return []bool{value.Distant>>l.datapaths[0].peers.paths["blue"]&1 != 0, value.Distant>>l.datapaths[0].peers.paths["red"]&1 != 0}
	}
	l.setHealth(t, PeerHealth{Distant: map[string]bool{"blue": true, "red": true}})
	require.Equal(t, []bool{true, true}, distant())
	for node := range l.Nodes {
		l.reopen(t, node, Options{})
	}
	l.applyAll(t)
	require.Equal(t, []bool{true, true}, distant(), "after the restart")
	l.setHealth(t, PeerHealth{Distant: map[string]bool{"red": false}})
	require.Equal(t, []bool{true, false}, distant(), "while it knows of one")
	l.setHealth(t, PeerHealth{Distant: map[string]bool{"blue": false}})
	require.Equal(t, []bool{false, false}, distant(), "when it knows both")
	l.setHealth(t, PeerHealth{})
	require.Equal(t, []bool{false, false}, distant(), "what was before is forgotten")
}

func TestNewConnectionsBeginOffADistantPath(t *testing.T) {
	t.Parallel()
	l, client, server := newPair(t, Options{})
	l.applyAll(t)
	l.setHealth(t, PeerHealth{Distant: map[string]bool{"green": true}})
	for range 3 {
		startTalk(t, client, server)
	}
	l.awaitSubflows(t, 0, 9)
	if sent := l.sentIn(t, 0, 300*time.Millisecond); !isSpreadOver(sent, []string{"blue", "red"}) {
		t.Errorf("it sends %v", sent)
	}
}
