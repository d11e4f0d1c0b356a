// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"

	agent "braid.dev/braid/agent/pace"
	"braid.dev/braid/bpf/pace"
	"braid.dev/braid/internal/testutil"
)

const (
	perConnection = 1
	perEndpoint   = 2
)

func (l *lab) sharedEndpoint() agent.Endpoint {
	shared := l.endpoint()
	shared.SharedLimits = true
	return shared
}

// count keeps the records as the packet programs do: what each subflow has sent.
// New subflows get the limit.
func (l *lab) count(t *testing.T, of limit) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(30 * time.Millisecond):
			}
			for _, s := range sockets(t, l.client) {
				l.note(t, s.key(), of, func(record *pace.PaceSubflow) { record.Traffic[0].Bytes = s.sent })
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-done
	})
}

// sendUnless fills the connection, as long as it is not told to rest.
func sendUnless(t *testing.T, connection net.Conn, resting *atomic.Bool) {
	t.Helper()
	require.NoError(t, connection.(*net.TCPConn).SetWriteBuffer(64<<10)) // little is left to send when it rests
	done := make(chan struct{})
	go func() {
		defer close(done)
		piece := make([]byte, 16<<10)
		for {
			if resting.Load() {
				time.Sleep(time.Millisecond)
				if _, err := connection.Write(nil); err != nil {
					return
				}
				continue
			}
			if _, err := connection.Write(piece); err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = connection.(*net.TCPConn).SetLinger(0)
		_ = connection.Close()
		resting.Store(false)
		<-done
	})
}

func TestSubflowsOfAConnectionShareItsRate(t *testing.T) {
	for _, mbit := range []float64{5, 20, 200} {
		l := newLab(t)
		l.allow(t, 4, 3)
		l.serve(t, l.server.IPv4)
		l.apply(t, l.sharedEndpoint())
		connection := l.dial(t, l.server.IPv4)
		l.awaitSubflows(t, 3)
		l.run(t)
		l.count(t, limit{mbit: mbit, id: 1, scope: perConnection})
		time.Sleep(300 * time.Millisecond)
		send(t, connection)
		time.Sleep(time.Second)
		for range 3 {
			expectRates(t, "the subflows together", l.client, time.Second, together(mbit))
		}
	}
}

func TestConnectionsOfAnEndpointShareItsRate(t *testing.T) {
	const mbit = 40
	l := newLab(t)
	l.serve(t, l.server.IPv4)
	l.apply(t, l.sharedEndpoint())
	l.run(t)
	l.count(t, limit{mbit: mbit, id: 1, scope: perEndpoint})
	var rest [2]atomic.Bool
	connections := []net.Conn{l.dial(t, l.server.IPv4), l.dial(t, l.server.IPv4)}
	l.awaitSubflows(t, 2)
	time.Sleep(300 * time.Millisecond)
	for i, connection := range connections {
		sendUnless(t, connection, &rest[i])
	}
	time.Sleep(time.Second)
	expectRates(t, "both together", l.client, 2*time.Second, func(rates map[ends]float64) bool {
		for _, rate := range rates {
			if rate < 0.35*mbit {
				return false
			}
		}
		return isNear(sum(rates), mbit)
	})
	rest[0].Store(true)
	time.Sleep(500 * time.Millisecond)
	expectRates(t, "one while the other rests", l.client, time.Second, together(mbit))
	rest[0].Store(false)
	expectRates(t, "both again", l.client, 2*time.Second, together(mbit))
}

func TestSharesOfSubflowsThatEndedAreForgotten(t *testing.T) {
	l := newLab(t)
	l.serve(t, l.server.IPv4)
	l.apply(t, l.sharedEndpoint())
	l.run(t)
	l.dial(t, l.server.IPv4)
	s := l.awaitSubflows(t, 1)[0]
	paced := func(record *pace.PaceSubflow) { record.Paced = 1 }
	l.note(t, s.key(), limit{mbit: 20, id: 1, scope: perEndpoint}, paced)
	shares, err := ebpf.LoadPinnedMap(filepath.Join(l.directory, "paces"), nil)
	require.NoError(t, err)
	defer shares.Close()
	has := func() bool {
		var rate uint64
		return shares.Lookup(s.key(), &rate) == nil
	}
	testutil.Eventually(t, 5*time.Second, "the subflow gets a share", has)
	const reset = 4
	l.note(t, s.key(), limit{mbit: 20, id: 1, scope: perEndpoint}, paced, func(record *pace.PaceSubflow) { record.Ended = reset })
	testutil.Eventually(t, 5*time.Second, "its share is taken back", func() bool { return !has() })
	l.note(t, s.key(), limit{mbit: 20, id: 1, scope: perEndpoint}, paced, func(record *pace.PaceSubflow) { record.Ended = 0 })
	testutil.Eventually(t, 5*time.Second, "it gets one again", has)
	l.note(t, s.key(), limit{})
	testutil.Eventually(t, 5*time.Second, "without the limit it has none", func() bool { return !has() })
}

// Whoever forges segments makes records of subflows that no socket has: they take no
// part of the rate, and no room.
func TestSubflowsWithoutASocketHaveNoShare(t *testing.T) {
	l := newLab(t)
	l.serve(t, l.server.IPv4)
	l.apply(t, l.sharedEndpoint())
	l.run(t)
	l.dial(t, l.server.IPv4)
	paced := l.awaitSubflows(t, 1)[0].key()
	for port := range uint16(100) {
		forged := paced
		forged.RemotePort = 10000 + port
		l.note(t, forged, limit{mbit: 20, id: 1, scope: perEndpoint})
	}
	l.note(t, paced, limit{mbit: 20, id: 1, scope: perEndpoint}, func(record *pace.PaceSubflow) { record.Paced = 1 })
	shares, err := ebpf.LoadPinnedMap(filepath.Join(l.directory, "paces"), nil)
	require.NoError(t, err)
	defer shares.Close()
	var rate uint64
	testutil.Eventually(t, 5*time.Second, "the subflow gets a share", func() bool { return shares.Lookup(paced, &rate) == nil })
	var key pace.PaceSubflowKey
	count := 0
	for entries := shares.Iterate(); entries.Next(&key, &rate); count++ {
	}
	if count != 1 {
		t.Errorf("%d subflows have a share", count)
	}
}

func TestAnOlderSubflowThatBeginsToMatchIsFound(t *testing.T) {
	l := newLab(t)
	l.serve(t, l.server.IPv4)
	connection := l.dial(t, l.server.IPv4)
	send(t, connection)
	l.apply(t, l.endpoint())
	l.run(t)
	time.Sleep(300 * time.Millisecond)
	l.count(t, limit{mbit: 20})
	testutil.Eventually(t, 5*time.Second, "it is paced", func() bool { return all(paces(t, l.client), "20000000") })
}
