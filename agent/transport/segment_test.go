// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/binary"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/lab/network"
)

// segment is what tests look at of a captured one.
type segment struct {
	fromClient    bool
	client        string // address and port
	flags         byte
	payload, free int
	options       map[byte][]byte // by their kinds
}

// captureOf opens a socket that sees all packets of a pod.
func captureOf(t *testing.T, pod *network.Pod) (socket int) {
	t.Helper()
	index, err := pod.Node.Index(pod.HostInterface)
	require.NoError(t, err)
	const all = 0x0300 // ETH_P_ALL in network order: with it alone what leaves is seen too
	require.NoError(t, pod.Node.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			err = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		}
		if err == nil {
			err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index})
		}
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(socket) })
	return socket
}

// bothWays are the segments over IPv4 of connections to the server's port, in their order.
func bothWays(t *testing.T, socket int) (all []segment) {
	t.Helper()
	buffer := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err == unix.EAGAIN {
			return all
		}
		require.NoError(t, err)
		if s, is := parse(buffer[:n]); is {
			all = append(all, s)
		}
	}
}

func parse(packet []byte) (s segment, is bool) {
	if packet[0]>>4 != 4 || packet[9] != unix.IPPROTO_TCP {
		return s, false
	}
	addresses, tcp := packet[12:20], packet[4*(packet[0]&15):]
	ports := [2]uint16{binary.BigEndian.Uint16(tcp), binary.BigEndian.Uint16(tcp[2:])}
	server := slices.IndexFunc(ports[:], func(at uint16) bool { return strconv.Itoa(int(at)) == port })
	if server < 0 {
		return s, false
	}
	header := 4 * int(tcp[12]>>4)
	end := 1 - server
	s = segment{
		fromClient: server == 1, client: string(addresses[4*end:4*end+4]) + strconv.Itoa(int(ports[end])), flags: tcp[13],
		payload: int(binary.BigEndian.Uint16(packet[2:])) - (len(packet) - len(tcp)) - header, free: 60 - header, options: map[byte][]byte{},
	}
	for rest := tcp[20:header]; len(rest) > 0 && rest[0] != 0; {
		if rest[0] == 1 {
			rest = rest[1:]
			continue
		}
		s.options[rest[0]], rest = slices.Clone(rest[:rest[1]]), rest[rest[1]:]
	}
	return s, true
}
