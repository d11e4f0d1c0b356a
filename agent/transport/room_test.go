// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/lab/network"
)

const (
	flagFIN, flagSYN, flagACK = 1, 2, 16

	optionSACK, optionMPTCP = 5, 30

	// Subtypes of MPTCP's option (RFC 8684), and the bit of a DSS that ends the data.
	mpCapable, mpJoin, dss, addAddr = 0, 1, 2, 3
	dataFIN                         = 1 << 4
)

// kinds of segments, in the table's order.
var kinds = []string{
	"SYN", "SYN/ACK", "third ACK", "first data", "data", "acknowledgement", "acknowledgement, one SACK block",
	"DATA_FIN", "FIN", "SYN of a join", "SYN/ACK of a join", "third ACK of a join", "ADD_ADDR", "echo of ADD_ADDR",
}

// kindOf says which a segment is; before are how many of its flow came before it.
func kindOf(s segment, before int) string {
	blocks := map[int]string{0: "", 10: ", one SACK block"}
	if suffix, listed := blocks[len(s.options[optionSACK])]; listed {
		return kindWithoutSACK(s, before) + suffix
	}
	return "with more SACK blocks"
}

func kindWithoutSACK(s segment, before int) string {
	subtype, ofJoin := -1, ""
	mptcp := s.options[optionMPTCP]
	if len(mptcp) > 3 {
		subtype = int(mptcp[2] >> 4)
	}
	if subtype == mpJoin {
		ofJoin = " of a join"
	}
	switch {
	case s.flags&(flagSYN|flagACK) == flagSYN|flagACK:
		return "SYN/ACK" + ofJoin
	case s.flags&flagSYN != 0:
		return "SYN" + ofJoin
	case s.payload > 0 && (subtype == mpCapable || before == 3 && subtype < 0):
		return "first data"
	case s.payload > 0:
		return "data"
	case subtype == mpCapable, subtype == mpJoin, before == 2:
		return "third ACK" + ofJoin
	case s.flags&flagFIN != 0:
		return "FIN"
	case subtype == dss && mptcp[3]&dataFIN != 0:
		return "DATA_FIN"
	case subtype == addAddr:
		return map[bool]string{false: "ADD_ADDR", true: "echo of ADD_ADDR"}[mptcp[2]&1 != 0]
	}
	return "acknowledgement"
}

// least is the least room that segments of each kind left.
type least map[string]int

// note says how many of them were acknowledgements with one SACK block.
func (l least) note(segments []segment) (selective int) {
	before := map[string]int{}
	for _, s := range segments {
		kind := kindOf(s, before[s.client])
		before[s.client]++
		if kind == kinds[6] {
			selective++
		}
		if was, known := l[kind]; !known || s.free < was {
			l[kind] = s.free
		}
	}
	return selective
}

//go:embed testdata/room.golden
var roomKnown string

// The room in which requests have to fit, by what stock sockets leave in their own segments:
// the same on all kernels that make test-kernels boots.
func TestOptionsOfSegmentsLeaveTheRoomThatIsKnown(t *testing.T) {
	columns := []string{"TCP", "TCP, no timestamps", "MPTCP", "MPTCP, no timestamps"}
	found := map[string]least{}
	for _, column := range columns {
		found[column] = least{}
		protocol, _, bare := strings.Cut(column, ",")
		pods := roomLab(t, bare)
		found[column].note(pods.exchange(t, protocol))
		pods.giveAddresses(t)
		found[column].note(pods.exchange(t, protocol))
		pods.overflow(t)
		for selective := 0; selective < 100; { // those that tell of a loss, and not all alike
			selective += found[column].note(pods.exchange(t, protocol))
		}
	}
	if got := roomTable(columns, found); got != roomKnown {
		t.Errorf("segments leave, in bytes:\n%s\nknown is:\n%s", got, roomKnown)
	}
}

func TestTheDocumentationHasTheTableOfTheRoom(t *testing.T) {
	page, err := os.ReadFile("../../docs/transport.md")
	require.NoError(t, err)
	require.Contains(t, string(page), roomKnown)
}

func roomTable(columns []string, found map[string]least) string {
	var b strings.Builder
	fmt.Fprintf(&b, "| bytes free for options | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---:|", len(columns)))
	for _, kind := range kinds {
		fmt.Fprintf(&b, "| %s |", kind)
		for _, column := range columns {
			if free, seen := found[column][kind]; seen {
				fmt.Fprintf(&b, " %d |", free)
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}

// room is a client and a server on two nodes.
type room struct {
	*network.Network
	client, server *network.Pod
}

func roomLab(t *testing.T, withoutTimestamps bool) *room {
	t.Helper()
	l := &room{Network: network.ForTest(t, network.Spec{Nodes: 2, Paths: []string{"net1"}, PodsPerNode: 1})}
	l.client, l.server = l.Nodes[0].Pods[0], l.Nodes[1].Pods[0]
	for _, pod := range []*network.Pod{l.client, l.server} {
		run(t, pod, "sysctl -qw net.ipv4.tcp_timestamps="+map[bool]string{false: "1", true: "0"}[withoutTimestamps])
		run(t, pod, "ip mptcp limits set subflows 2 add_addr_accepted 2")
	}
	return l
}

func run(t *testing.T, pod *network.Pod, command string) {
	t.Helper()
	words := strings.Fields(command)
	_, err := pod.Run(words[0], words[1:]...)
	require.NoError(t, err)
}

// giveAddresses has the client join from a second address, and the server announce one.
func (l *room) giveAddresses(t *testing.T) {
	t.Helper()
	for i, pod := range []*network.Pod{l.client, l.server} {
		own, other := l.Nodes[i], l.Nodes[1-i]
		address := fmt.Sprintf("10.244.9.%d", i+1)
		require.NoError(t, pod.AddAddress("eth0", address+"/32"))
		require.NoError(t, own.AddRoute(network.Route{Destination: address + "/32", Interface: pod.HostInterface}))
		require.NoError(t, other.AddRoute(network.Route{Destination: address + "/32", Gateway: own.Address(0, 4), Interface: "net1"}))
		run(t, pod, "ip mptcp endpoint add "+address+[]string{" subflow", " signal"}[i])
	}
}

// overflow has the queue in front of each node's link lose what comes in bursts.
func (l *room) overflow(t *testing.T) {
	t.Helper()
	for _, node := range l.Nodes {
		require.NoError(t, node.ShapeQueue("net1", 50, 30_000))
	}
}

// exchange has a connection carry data in both directions, and says what was sent.
func (l *room) exchange(t *testing.T, protocol string) []segment {
	t.Helper()
	socket := captureOf(t, l.client)
	listener, err := l.server.Listen(context.Background(), "tcp", net.JoinHostPort(l.server.IPv4, port))
	require.NoError(t, err)
	var answering sync.WaitGroup
	answering.Go(func() {
		connection, err := listener.Accept()
		if err == nil {
			_, _ = io.Copy(connection, connection)
			_ = connection.Close()
		}
	})
	l.send(t, protocol)
	_ = listener.Close()
	answering.Wait()
	time.Sleep(100 * time.Millisecond) // the last segments
	return bothWays(t, socket)
}

func (l *room) send(t *testing.T, protocol string) {
	t.Helper()
	var client net.Conn
	require.NoError(t, l.client.Do(func() (err error) {
		dialer := net.Dialer{Timeout: 30 * time.Second, KeepAlive: -1}
		dialer.SetMultipathTCP(protocol == "MPTCP")
		client, err = dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(l.server.IPv4, port))
		return err
	}))
	defer client.Close()
	data := make([]byte, 200_000)
	for range 10 {
		done := make(chan error, 1)
		go func() { _, err := client.Write(data); done <- err }()
		_, err := io.ReadFull(client, make([]byte, len(data)))
		require.NoError(t, err)
		require.NoError(t, <-done)
		time.Sleep(20 * time.Millisecond) // while nothing is under way joins come about
	}
	require.NoError(t, client.(*net.TCPConn).CloseWrite())
	_, err := io.Copy(io.Discard, client)
	require.NoError(t, err)
}
