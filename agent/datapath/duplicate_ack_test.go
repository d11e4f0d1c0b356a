// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/uplink"
	"braid.dev/braid/internal/lab/network"
	"braid.dev/braid/internal/lab/traffic"
)

// Each subflow lacks segments now and then, and the others go on. One of the nodes may be somebody else's.
func TestDuplicateAcknowledgementsTellOfNoMoreData(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		overlay  network.Overlay
		nodes    []int
		versions []int
	}{
		{"both nodes", network.Overlay{}, []int{0, 1}, []int{4, 6}},
		{"the sender's node", network.Overlay{}, []int{0}, []int{4}},
		{"the receiver's node", network.Overlay{}, []int{1}, []int{6}},
		{"VXLAN over IPv4", network.Overlay{Outer: 4}, []int{0, 1}, []int{6}},
		{"VXLAN over IPv6", network.Overlay{Outer: 6}, []int{0, 1}, []int{4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newOverlay(t, c.overlay)
			for _, i := range c.nodes {
				state := l.states(t)[i]
				state.Tunnels = l.findTunnels(t, i)
				l.apply(t, i, state)
			}
			for _, version := range []int{4, 6} { // Linux 6.1 joins no port of IPv6
				serve(t, l.Pod("pod-2-1"), version)
				announce(t, l.Pod("pod-1-1"), l.Pod("pod-2-1"), version, 3)
			}
			for _, version := range c.versions {
				for _, checksums := range []string{"on", "off"} {
					run(t, l.Pod("pod-2-1"), "ethtool", "-K", "eth0", "tx", checksums)
					t.Run(fmt.Sprintf("IPv%d, checksums by the interface %s", version, checksums), func(t *testing.T) {
						l.expectDuplicatesOfNoMoreData(t, version, c.nodes)
					})
				}
			}
		})
	}
}

// expectDuplicatesOfNoMoreData has a pod receive, by subflows that lack segments, and looks at what its acknowledgements
// say where they arrive, and that the nodes changed them.
func (l *lab) expectDuplicatesOfNoMoreData(t *testing.T, version int, nodes []int) {
	t.Helper()
	client, server := l.Pod("pod-1-1"), l.Pod("pod-2-1")
	socket, before := listenTo(t, client, version), l.withdrawn(t, nodes)
	r := start(t, client, server, version, traffic.Options{Duration: 2 * time.Second, Verify: true})
	r.awaitSubflows(t, 3)
	goesOn, err := server.Lose("dport", "1-65535", "numgen", "random", "mod", "25", "0")
	require.NoError(t, err)
	defer func() { require.NoError(t, goesOn()) }()
	r.wait(t)
	duplicates, changed := duplicatesOf(t, socket), l.withdrawn(t, nodes)
	require.NotZero(t, duplicates)
	for _, node := range nodes {
		changed[node] -= before[node]
		require.GreaterOrEqual(t, int(changed[node]), duplicates, "by node %d", node+1)
	}
	corrupted, err := client.KernelCounter("TcpInCsumErrors")
	require.NoError(t, err)
	require.Zero(t, corrupted)
	dropped, err := server.KernelCounter("MPTcpExtNoDSSInWindow")
	require.NoError(t, err)
	t.Logf("%d duplicates, of which nodes changed %v; data was dropped %d times", duplicates, changed, dropped)
}

// withdrawn are the acknowledgements that the sender's node changed, and those that the receiver's did.
func (l *lab) withdrawn(t *testing.T, nodes []int) (counts [2]uint64) {
	t.Helper()
	for _, node := range nodes {
		found, err := l.datapaths[node].flows.silences()
		require.NoError(t, err)
		counts[node] = found.withdrawn[[]int{uplink.ACKReceived, uplink.ACKSent}[node]]
	}
	return counts
}

// listenTo opens a socket that sees what comes in to a pod.
func listenTo(t *testing.T, pod *network.Pod, version int) (socket int) {
	t.Helper()
	protocol := map[int]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}[version]
	index, err := pod.Index("eth0")
	require.NoError(t, err)
	require.NoError(t, pod.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		}
		if err == nil {
			err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: bpf.Port(protocol), Ifindex: index})
		}
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(socket) })
	return socket
}

// acknowledgement is what a pure ACK says.
type acknowledgement struct {
	number uint32 // of TCP
	sacks  bool   // a segment is missing
	data   uint64 // DATA_ACK; 0 without one, or where the DSS says that the other direction ends
}

// duplicatesOf counts the acknowledgements that came in which acknowledge nothing new, as a segment is missing.
// None of them may tell of more data than one before.
func duplicatesOf(t *testing.T, socket int) (count int) {
	t.Helper()
	last, told := map[string]acknowledgement{}, map[string]uint64{}
	for of, now := range acknowledgements(t, socket) {
		if now.sacks && now.number == last[of].number && now.data != 0 {
			count++
			require.LessOrEqual(t, now.data, told[of], "an acknowledgement that repeats another one tells of more data")
		}
		last[of], told[of] = now, max(told[of], now.data)
	}
	return count
}

// acknowledgements are the pure ACKs that came in, with the ports that they are of, but for those that end anything.
func acknowledgements(t *testing.T, socket int) func(yield func(string, acknowledgement) bool) {
	return func(yield func(string, acknowledgement) bool) {
		buffer := make([]byte, 1<<17)
		for {
			n, _, err := unix.Recvfrom(socket, buffer, 0)
			if errors.Is(err, unix.EAGAIN) {
				return
			}
			require.NoError(t, err)
			first := layers.LayerTypeIPv4
			if buffer[0]>>4 == 6 {
				first = layers.LayerTypeIPv6
			}
			tcp, is := gopacket.NewPacket(buffer[:n], first, gopacket.Default).Layer(layers.LayerTypeTCP).(*layers.TCP)
			if is && tcp.ACK && !tcp.SYN && !tcp.FIN && len(tcp.Payload) == 0 && !yield(fmt.Sprint(tcp.SrcPort, tcp.DstPort), read(tcp)) {
				return
			}
		}
	}
}

func read(tcp *layers.TCP) acknowledgement {
	const dss, hasAck, hasAck8, ends = 2, 1, 2, 16
	a := acknowledgement{number: tcp.Ack}
	for _, option := range tcp.Options {
		data := option.OptionData
		switch {
		case option.OptionType == layers.TCPOptionKindSACK:
			a.sacks = true
		case option.OptionType != 30 || data[0]>>4 != dss || data[1]&(hasAck|ends) != hasAck:
		case data[1]&hasAck8 != 0:
			a.data = binary.BigEndian.Uint64(data[2:])
		default:
			a.data = uint64(binary.BigEndian.Uint32(data[2:]))
		}
	}
	return a
}
