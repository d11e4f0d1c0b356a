// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/bpf/transport"
)

// capture opens a socket that sees all IPv4 packets of the client.
func (p *pair) capture(t *testing.T) (socket int) {
	t.Helper()
	index, err := p.client.Node.Index(p.client.HostInterface)
	require.NoError(t, err)
	const ipv4 = 0x0008 // ETH_P_IP in network order
	require.NoError(t, p.client.Node.Do(func() (err error) {
		socket, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err == nil {
			err = unix.Bind(socket, &unix.SockaddrLinklayer{Protocol: ipv4, Ifindex: index})
		}
		return err
	}))
	t.Cleanup(func() { _ = unix.Close(socket) })
	return socket
}

// segment is what the test looks at of a captured one.
type segment struct {
	payload, free int
	options       map[byte][]byte // by their kinds
}

// captured are the segments that the client sent to the server's port.
func captured(t *testing.T, socket int) (all []segment) {
	t.Helper()
	buffer := make([]byte, 1<<17)
	for {
		n, _, err := unix.Recvfrom(socket, buffer, 0)
		if err == unix.EAGAIN {
			return all
		}
		require.NoError(t, err)
		packet := buffer[:n]
		tcp := packet[4*(packet[0]&15):]
		if packet[9] != unix.IPPROTO_TCP || binary.BigEndian.Uint16(tcp[2:]) != 5001 {
			continue
		}
		header := 4 * int(tcp[12]>>4)
		s := segment{payload: int(binary.BigEndian.Uint16(packet[2:])) - 4*int(packet[0]&15) - header, free: 60 - header, options: map[byte][]byte{}}
		for rest := tcp[20:header]; len(rest) > 0 && rest[0] != 0; {
			if rest[0] == 1 {
				rest = rest[1:]
				continue
			}
			s.options[rest[0]], rest = slices.Clone(rest[:rest[1]]), rest[rest[1]:]
		}
		all = append(all, s)
	}
}

// What is meant, by its bytes; and no segment with data has any of it.
func TestRequestsAreOnTheWireAsTheyAreMeant(t *testing.T) {
	hash, strategy := numbers.OfName("cubic"), numbers.OfName("EarliestCompletionFirst")
	requests := [][]byte{
		{transport.RequestInitialWindow, 4, 0, 40}, {transport.RequestCongestionControl, 4, byte(hash >> 8), byte(hash)},
		{transport.RequestDelayedACK, 4, 0, 20}, {transport.RequestRate, 4, 4<<3 | 1250>>8, 1250 & 0xff}, // 1250 << 4 kbit/s
		{transport.RequestSchedule, 4, byte(strategy >> 8), byte(strategy)}, {transport.RequestDelayThreshold, 4, 0, 100}, {transport.RequestInactivityTimeout, 4, 0, 60},
	}
	for _, protocol := range []string{"TCP", "MPTCP"} {
		t.Run(protocol, func(t *testing.T) {
			p := newPair(t, allOnNet1)
			p.apply(t, asksForAll(), nil)
			p.serve(t, p.server.IPv4)
			socket := p.capture(t)
			client, server := p.connect(t, protocol, p.server.IPv4)
			var seen [][]byte
			var timeout []byte
			for begun := time.Now(); time.Since(begun) < 4*time.Second; time.Sleep(50 * time.Millisecond) {
				p.part.look(false)
				talk(t, client, server)
				_, err := client.Write(make([]byte, 100_000))
				require.NoError(t, err)
				_, err = server.Read(make([]byte, 100_000))
				require.NoError(t, err)
				for _, s := range captured(t, socket) {
					asked, alone := s.options[transport.OptionExperiment], s.options[transport.OptionUserTimeout]
					if s.payload > 0 && (asked != nil || alone != nil) {
						t.Fatalf("a segment with %d bytes of data has the options %v", s.payload, s.options)
					}
					for at := transport.RequestBytes; at < len(asked); at += transport.RequestBytes {
						seen = append(seen, asked[at:at+transport.RequestBytes])
					}
					if alone != nil {
						timeout = alone
					}
				}
			}
			for _, one := range requests {
				if !slices.ContainsFunc(seen, func(other []byte) bool { return slices.Equal(one, other) }) {
					t.Errorf("nobody was asked % x", one)
				}
			}
			for _, one := range seen {
				if !slices.ContainsFunc(requests, func(other []byte) bool { return slices.Equal(one, other) }) {
					t.Errorf("somebody was asked % x", one)
				}
			}
			if !slices.Equal(timeout, []byte{transport.OptionUserTimeout, 4, 0, 7}) {
				t.Errorf("the option of the user timeout is % x", timeout)
			}
		})
	}
}

// The room in which requests have to fit, by what a client sends while nothing is asked.
func TestOptionsOfSegmentsLeaveTheRoomThatIsKnown(t *testing.T) {
	for protocol, wanted := range map[string][2]int{"TCP": {20, 28}, "MPTCP": {16, 8}} {
		p := newPair(t, nil)
		p.serve(t, p.server.IPv4)
		socket := p.capture(t)
		client, server := p.connect(t, protocol, p.server.IPv4)
		talk(t, client, server)
		segments := captured(t, socket)
		require.GreaterOrEqual(t, len(segments), 3)
		if got := [2]int{segments[0].free, segments[1].free}; got != wanted {
			t.Errorf("%s: a SYN and the third segment leave %v bytes, not %v", protocol, got, wanted)
		}
		last := segments[len(segments)-1]
		if least := map[string]int{"TCP": 28, "MPTCP": 16}[protocol]; last.payload != 0 || last.free < least {
			t.Errorf("%s: %s", protocol, fmt.Sprintf("an acknowledgement leaves %d bytes, not %d", last.free, least))
		}
	}
}
