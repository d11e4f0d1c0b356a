// SPDX-License-Identifier: Apache-2.0

package pathmanager_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/lab/pair"
	"braid.dev/braid/internal/mptcpnl"
)

// meshed are settings of a host with further addresses, for a full mesh.
func meshed(t *testing.T, host *pair.Host, each int, further ...string) pathmanager.Settings {
	t.Helper()
	wanted := settings(host, agent, 8)
	wanted.Mode, wanted.EachPair = v1alpha1.SubflowModeFullMesh, each
	for _, address := range further {
		require.NoError(t, host.AddAddress("eth0", address+"/24"))
		wanted.Addresses = append(wanted.Addresses, netip.MustParseAddr(address))
	}
	return wanted
}

// pairsOf counts a connection's subflows by their addresses.
func pairsOf(host *pair.Host, connection net.Conn) map[string]int {
	pairs := map[string]int{}
	for _, subflow := range host.Subflows(connection.LocalAddr()) {
		pairs[subflow.Local.Addr().String()+">"+subflow.Remote.Addr().String()]++
	}
	return pairs
}

func expectPairs(t *testing.T, host *pair.Host, connection net.Conn, want map[string]int) {
	t.Helper()
	var got map[string]int
	pair.Eventually(t, func() bool {
		got = pairsOf(host, connection)
		return fmt.Sprint(got) == fmt.Sprint(want)
	}, func() string { return fmt.Sprintf("subflows are between %v, not %v", got, want) })
	time.Sleep(500 * time.Millisecond)
	if got = pairsOf(host, connection); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("subflows are between %v, not %v any more", got, want)
	}
}

func TestAFullMeshHasASubflowForEachPairOfAddresses(t *testing.T) {
	t.Parallel()
	for _, each := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d for each pair", each), func(t *testing.T) {
			client, server := pair.New(t)
			manageWith(t, server, meshed(t, server, each, "10.9.0.12"))
			manageWith(t, client, meshed(t, client, each, "10.9.0.11"))
			connection := client.Connect(netip.AddrPortFrom(server.IPv4, serveEverywhere(t, server)))
			expectPairs(t, client, connection, map[string]int{
				"10.9.0.1>10.9.0.2": each, "10.9.0.1>10.9.0.12": each,
				"10.9.0.11>10.9.0.2": each, "10.9.0.11>10.9.0.12": each,
			})
		})
	}
}

// serveEverywhere echoes on all of a host's addresses and returns the port.
func serveEverywhere(t *testing.T, host *pair.Host) uint16 {
	t.Helper()
	return host.ServeAt(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)).Port()
}

func TestAFullMeshJoinsBothIPVersionsWhereTheSocketDoes(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manageWith(t, server, meshed(t, server, 1))
	manageWith(t, client, meshed(t, client, 1))
	connection := client.Connect(netip.AddrPortFrom(server.IPv6, serveEverywhere(t, server)))
	expectPairs(t, client, connection, map[string]int{"fd09::1>fd09::2": 1, "10.9.0.1>10.9.0.2": 1})
}

// The kernel acknowledges an announcement though the agent is away, and forgets it.
func TestAFullMeshIsCompletedAfterAnnouncementsThatNoAgentReceived(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manageWith(t, server, meshed(t, server, 1, "10.9.0.12"))
	wanted := meshed(t, client, 1)
	require.NoError(t, manageWith(t, client, wanted).Close())
	connection := client.Connect(netip.AddrPortFrom(server.IPv4, serveEverywhere(t, server)))
	pair.Eventually(t, func() bool {
		counters, err := client.Run("nstat", "-as", "MPTcpExtAddAddr")
		require.NoError(t, err)
		return strings.Contains(counters, "MPTcpExtAddAddr")
	}, func() string { return "nothing was announced" })
	began := time.Now()
	manageWith(t, client, wanted)
	expectPairs(t, client, connection, map[string]int{"10.9.0.1>10.9.0.2": 1, "10.9.0.1>10.9.0.12": 1})
	require.Less(t, time.Since(began), 8*time.Second, "the announcement is made again before anybody looks at sockets, which is after 10 s")
}

func TestAFullMeshWithASocketOfOneIPVersionLeavesTheOtherAlone(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manageWith(t, server, meshed(t, server, 1))
	manageWith(t, client, meshed(t, client, 1, "10.9.0.11"))
	connection := client.Connect(netip.AddrPortFrom(server.IPv4, serveEverywhere(t, server)))
	expectPairs(t, client, connection, map[string]int{"10.9.0.1>10.9.0.2": 1, "10.9.0.11>10.9.0.2": 1})
}

func TestAFullMeshKeepsToTheCount(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manageWith(t, server, meshed(t, server, 1))
	wanted := meshed(t, client, 3, "10.9.0.11", "10.9.0.13")
	wanted.Count = 6
	manageWith(t, client, wanted)
	connection := client.Connect(server.Serve(4))
	expectPairs(t, client, connection, map[string]int{"10.9.0.1>10.9.0.2": 2, "10.9.0.11>10.9.0.2": 2, "10.9.0.13>10.9.0.2": 2})
}

func TestAnAddressWithoutAListenerIsNotAnnounced(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manageWith(t, server, meshed(t, server, 1, "10.9.0.12"))
	manageWith(t, client, meshed(t, client, 1))
	connection := client.Connect(server.Serve(4))
	expectPairs(t, client, connection, map[string]int{"10.9.0.1>10.9.0.2": 1})
}

func TestAClosedPairOfAFullMeshIsOpenedAgain(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manageWith(t, server, meshed(t, server, 1))
	manageWith(t, client, meshed(t, client, 1, "10.9.0.11"))
	connection := client.Connect(server.Serve(4))
	want := map[string]int{"10.9.0.1>10.9.0.2": 1, "10.9.0.11>10.9.0.2": 1}
	expectPairs(t, client, connection, want)
	for range 2 {
		killOne(t, client, connection)
		expectPairs(t, client, connection, want)
	}
}

func TestSubflowsOfOnePairDifferInTheirPorts(t *testing.T) {
	t.Parallel()
	client, server := pair.New(t)
	manage(t, server, agent, 4)
	wanted := settings(client, agent, 4)
	wanted.Mode = v1alpha1.SubflowModeNDiffPorts
	manageWith(t, client, wanted)
	connection := client.Connect(server.Serve(4))
	expectPairs(t, client, connection, map[string]int{"10.9.0.1>10.9.0.2": 4})
}

// refreshing is how long subflows are reset; BRAID_REFRESH_SECONDS makes it longer.
func refreshing(t *testing.T) time.Duration {
	seconds := os.Getenv("BRAID_REFRESH_SECONDS")
	if seconds == "" {
		return 15 * time.Second
	}
	number, err := strconv.Atoi(seconds)
	require.NoError(t, err)
	return time.Duration(number) * time.Second
}

// As in the experiments with subflows that a carrier's NAT forgets: whatever is
// reset, and however often, the transfer goes on.
func TestTransfersGoOnWhileSubflowsAreResetAgainAndAgain(t *testing.T) {
	for _, count := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d subflows", count), func(t *testing.T) {
			t.Parallel()
			client, server := pair.New(t)
			for _, host := range []*pair.Host{client, server} {
				require.NoError(t, host.Shape("eth0", 20))
			}
			manage(t, server, agent, count)
			manage(t, client, agent, count)
			connection, err := client.Dial(t.Context(), "tcp", server.Serve(4).String())
			require.NoError(t, err)
			transferred := transfer(t, connection)
			// Before a first answer there is nothing that a new subflow could join.
			pair.Eventually(t, func() bool { return transferred.Load() > 0 }, func() string { return "nothing comes back" })
			resets, slowest := 0, time.Duration(0)
			for deadline := time.Now().Add(refreshing(t)); time.Now().Before(deadline); time.Sleep(2500 * time.Millisecond) {
				client.ExpectSubflows(connection, count)
				for _, subflow := range client.Subflows(connection.LocalAddr()) {
					client.Kill(subflow)
					resets++
				}
				slowest = max(slowest, replaced(t, client, connection, count))
				before := transferred.Load()
				pair.Eventually(t, func() bool { return transferred.Load() >= before+1<<20 }, func() string { return "the transfer has stopped" })
			}
			t.Logf("%d subflows were reset, the slowest were back after %s, and %d bytes came back whole", resets, slowest, transferred.Load())
			if slowest > 2*time.Second {
				t.Errorf("subflows came back after %s: attempts became rarer though each succeeded", slowest)
			}
		})
	}
}

// transfer sends to a server that sends back what it gets, as much as it can until
// the test ends, and counts what came back as it was sent.
func transfer(t *testing.T, connection net.Conn) *atomic.Int64 {
	t.Helper()
	transferred := &atomic.Int64{}
	var ended sync.WaitGroup
	t.Cleanup(func() {
		connection.Close()
		ended.Wait()
	})
	ended.Go(func() { sendBlocks(connection) })
	ended.Go(func() {
		if err := receiveBlocks(connection, transferred); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after %d bytes: %v", transferred.Load(), err)
		}
	})
	return transferred
}

const blockSize = 16 << 10

// block is one whose content depends on its number.
func block(number uint64) []byte {
	data := make([]byte, blockSize)
	for i := 0; i < blockSize; i += 8 {
		binary.BigEndian.PutUint64(data[i:], number*blockSize+uint64(i))
	}
	return data
}

func sendBlocks(to io.Writer) {
	for number := uint64(0); ; number++ {
		if _, err := to.Write(block(number)); err != nil {
			return // the receiver tells why
		}
	}
}

func receiveBlocks(from io.Reader, transferred *atomic.Int64) error {
	got := make([]byte, blockSize)
	for number := uint64(0); ; number++ {
		if _, err := io.ReadFull(from, got); err != nil {
			return err
		}
		if !bytes.Equal(got, block(number)) {
			return fmt.Errorf("block %d is not what was sent", number)
		}
		transferred.Add(blockSize)
	}
}

// replaced waits until a connection has its subflows, and says how long it took.
func replaced(t *testing.T, host *pair.Host, connection net.Conn, count int) time.Duration {
	t.Helper()
	began := time.Now()
	var old []mptcpnl.Subflow
	pair.Eventually(t, func() bool {
		old = host.Subflows(connection.LocalAddr())
		return len(old) == count
	}, func() string { return fmt.Sprintf("subflows are %v", old) })
	return time.Since(began)
}
