// SPDX-License-Identifier: Apache-2.0

package announcements

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/pathmanager"
	"braid.dev/braid/bpf"
	"braid.dev/braid/internal/lab/pair"
)

// Each subflow lacks segments now and then, and the others go on.
func TestDuplicateAcknowledgementsTellOfNoMoreData(t *testing.T) {
	for _, checksums := range []string{"on", "off"} {
		t.Run("checksums by the interface "+checksums, func(t *testing.T) {
			forBoth(t, func(t *testing.T, version int) {
				l := newLab(t, pathmanager.OpenAfter{})
				_, err := l.server.Run("ethtool", "-K", "eth0", "tx", checksums)
				require.NoError(t, err)
				client, server := l.connectAll(t, version)
				l.lose(t, "dport", "1-65535", "numgen", "random", "mod", "25", "0")
				socket := listenTo(t, l.client, version)
				sent := randomBytes(8 << 20)
				failed, received := writes(client, sent), make([]byte, len(sent))
				_, err = io.ReadFull(server, received)
				require.NoError(t, errors.Join(err, <-failed))
				require.True(t, bytes.Equal(sent, received), "other bytes arrived than were sent")
				duplicates := duplicatesOf(t, socket)
				require.NotZero(t, duplicates)
				counted := metricsOf(t, l.holder, "braid_duplicate_acknowledgements_changed_total")
				require.Len(t, counted, 1)
				require.GreaterOrEqual(t, int(counted[0].GetCounter().GetValue()), duplicates)
				require.Zero(t, counter(t, l.client, "TcpInCsumErrors"))
				t.Logf("%d duplicates, %d times data was dropped", duplicates, counter(t, l.server, "MPTcpExtNoDSSInWindow"))
			})
		})
	}
}

// connectAll opens a connection with all its subflows.
func (l *lab) connectAll(t *testing.T, version int) (client, server net.Conn) {
	t.Helper()
	client, server = l.connectEnds(t, version)
	l.client.ExpectSubflows(client, subflows)
	return client, server
}

// listenTo opens a socket that sees what comes in to a host.
func listenTo(t *testing.T, host *pair.Host, version int) (socket int) {
	t.Helper()
	protocol := map[int]uint16{4: unix.ETH_P_IP, 6: unix.ETH_P_IPV6}[version]
	index, err := host.Index("eth0")
	require.NoError(t, err)
	require.NoError(t, host.Do(func() (err error) {
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
	data   uint64 // DATA_ACK; 0 without one
}

// duplicatesOf counts the acknowledgements that came in which acknowledge nothing new, as a segment is missing.
// None of them may tell of more data than one before, but of subflows by which little came.
func duplicatesOf(t *testing.T, socket int) (count int) {
	t.Helper()
	const little = 1 << 17
	first, last, told := map[string]uint32{}, map[string]acknowledgement{}, map[string]uint64{}
	for of, now := range acknowledgements(t, socket) {
		if _, known := last[of]; !known {
			first[of] = now.number
		}
		if now.sacks && now.number == last[of].number && now.data != 0 && now.number-first[of] > little {
			count++
			require.LessOrEqual(t, now.data, told[of], "an acknowledgement that repeats another one tells of more data")
		}
		last[of], told[of] = now, max(told[of], now.data)
	}
	return count
}

// acknowledgements are the pure ACKs that came in, with the ports that they are of.
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
			if is && tcp.ACK && !tcp.SYN && len(tcp.Payload) == 0 && !yield(fmt.Sprint(tcp.SrcPort, tcp.DstPort), read(tcp)) {
				return
			}
		}
	}
}

func read(tcp *layers.TCP) acknowledgement {
	const dss, hasAck, hasAck8 = 2, 1, 2
	a := acknowledgement{number: tcp.Ack}
	for _, option := range tcp.Options {
		data := option.OptionData
		switch {
		case option.OptionType == layers.TCPOptionKindSACK:
			a.sacks = true
		case option.OptionType != 30 || data[0]>>4 != dss || data[1]&hasAck == 0:
		case data[1]&hasAck8 != 0:
			a.data = binary.BigEndian.Uint64(data[2:])
		default:
			a.data = uint64(binary.BigEndian.Uint32(data[2:]))
		}
	}
	return a
}
