// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/mptcpnl"
)

const (
	fast, slow = 0, 1 // paths
	chunkBytes = 64 << 10
)

// connection is one of two subflows, on paths with round trips of 4 and 200 ms. Its
// client sends chunks one after another and awaits an answer to each.
type connection struct {
	net.Conn
	namespace   string
	diagnostics *mptcpnl.Diagnostics
	ends        [2]netip.AddrPort // local ones, by path
}

func newConnection(t *testing.T) *connection {
	n := network.ForTest(t, network.Spec{
		Nodes: 2, Paths: []string{"fast", "slow"}, LinkMbit: 100, IPv4: true,
		PathDelays: map[string]time.Duration{"fast": 2 * time.Millisecond, "slow": 100 * time.Millisecond},
	})
	client, server := n.Nodes[0], n.Nodes[1]
	require.NoError(t, client.Sysctl("net.mptcp.pm_type", "1"))
	port := serveChunks(t, server)
	dialed, err := client.Dial(context.Background(), "tcp", net.JoinHostPort(server.Address(fast, 4), port))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dialed.Close()) })
	c := &connection{Conn: dialed, namespace: client.Path()}
	c.sendChunks(t, 1) // the peer has proved that it speaks MPTCP
	c.open(t)
	c.join(t, netip.MustParseAddr(client.Address(slow, 4)), netip.MustParseAddrPort(net.JoinHostPort(server.Address(slow, 4), port)))
	return c
}

// serveChunks answers each chunk, whose size comes first, with a byte.
func serveChunks(t *testing.T, server *network.Node) (port string) {
	listener, err := server.Listen(context.Background(), "tcp", ":0")
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		accepted, err := listener.Accept()
		if err == nil {
			err = answerChunks(accepted)
		}
		done <- err
	}()
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		if err := <-done; !errors.Is(err, io.EOF) {
			t.Errorf("the server ended with %v", err)
		}
	})
	_, port, err = net.SplitHostPort(listener.Addr().String())
	require.NoError(t, err)
	return port
}

func answerChunks(accepted net.Conn) error {
	defer accepted.Close()
	for {
		var size uint32
		if err := binary.Read(accepted, binary.BigEndian, &size); err != nil {
			return err
		}
		if _, err := io.CopyN(io.Discard, accepted, int64(size)); err != nil {
			return err
		}
		if _, err := accepted.Write([]byte{1}); err != nil {
			return err
		}
	}
}

func (c *connection) sendChunks(t *testing.T, count int) {
	t.Helper()
	chunk := binary.BigEndian.AppendUint32(nil, chunkBytes)
	chunk = append(chunk, make([]byte, chunkBytes)...)
	for range count {
		require.NoError(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		_, err := c.Write(chunk)
		require.NoError(t, err)
		_, err = io.ReadFull(c, chunk[len(chunk)-1:])
		require.NoError(t, err)
	}
}

func (c *connection) open(t *testing.T) {
	file, err := os.Open(c.namespace)
	require.NoError(t, err)
	defer file.Close()
	c.diagnostics, err = mptcpnl.DialDiagnostics(int(file.Fd()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.diagnostics.Close()) })
}

// join adds the subflow on the slow path.
func (c *connection) join(t *testing.T, local netip.Addr, remote netip.AddrPort) {
	first, err := c.diagnostics.Subflows(0)
	require.NoError(t, err)
	if len(first) != 1 {
		t.Fatalf("the connection begins with %d subflows", len(first))
	}
	c.ends[fast] = first[0].Local
	file, err := os.Open(c.namespace)
	require.NoError(t, err)
	defer file.Close()
	manager, err := mptcpnl.Dial(int(file.Fd()))
	require.NoError(t, err)
	defer manager.Close()
	require.NoError(t, manager.CreateSubflow(first[0].Token, mptcpnl.Endpoint{Address: local, ID: 2}, remote))
	c.eventually(t, "a second subflow", func(subflows map[netip.AddrPort]mptcpnl.Subflow) bool {
		for end, subflow := range subflows {
			if end.Addr() == local && subflow.Established {
				c.ends[slow] = end
			}
		}
		return c.ends[slow].IsValid()
	})
}

func (c *connection) subflows(t *testing.T) map[netip.AddrPort]mptcpnl.Subflow {
	t.Helper()
	all, err := c.diagnostics.Subflows(0)
	require.NoError(t, err)
	byEnd := map[netip.AddrPort]mptcpnl.Subflow{}
	for _, subflow := range all {
		byEnd[subflow.Local] = subflow
	}
	return byEnd
}

// eventually sends chunks until something is so.
func (c *connection) eventually(t *testing.T, what string, so func(map[netip.AddrPort]mptcpnl.Subflow) bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !so(c.subflows(t)); c.sendChunks(t, 1) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// took is how long some chunks take.
func (c *connection) took(t *testing.T, count int) time.Duration {
	t.Helper()
	begun := time.Now()
	c.sendChunks(t, count)
	return time.Since(begun)
}

// schedule runs a scheduler with the strategy until the test's end.
func (c *connection) schedule(t *testing.T) *schedule.Scheduler {
	every := func(uint32, netip.AddrPort, netip.AddrPort) uint64 { return 1 }
	scheduler := schedule.Open(every, logr.Discard())
	running, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- scheduler.Run(running) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, errors.Join(<-done, scheduler.Close()))
	})
	require.NoError(t, scheduler.Apply([]schedule.Endpoint{{Number: 1, Path: c.namespace, Rules: 1}}))
	return scheduler
}

func TestASubflowThatWouldOnlyDelaySmallChunksRests(t *testing.T) {
	c := newConnection(t)
	scheduler := c.schedule(t)
	c.eventually(t, "the slow subflow rests", func(subflows map[netip.AddrPort]mptcpnl.Subflow) bool {
		return subflows[c.ends[slow]].BackupWanted
	})
	if c.subflows(t)[c.ends[fast]].BackupWanted {
		t.Error("the fast subflow rests")
	}
	const chunks = 20
	if took := c.took(t, chunks); took > chunks*100*time.Millisecond {
		t.Errorf("%d chunks took %s, as if half of them had gone the slow way", chunks, took)
	}
	require.NoError(t, scheduler.Apply(nil))
	c.eventually(t, "the slow subflow is used again", func(subflows map[netip.AddrPort]mptcpnl.Subflow) bool {
		return !subflows[c.ends[slow]].BackupWanted
	})
}
