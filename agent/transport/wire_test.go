// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/bpf/transport"
	"braid.dev/braid/internal/lab/ends"
)

// capture opens a socket that sees all IPv4 packets of the client.
func (p *pair) capture(t *testing.T) (socket int) { return captureOf(t, p.client) }

// captured are the segments that the client sent to the server's port.
func captured(t *testing.T, socket int) (all []segment) {
	t.Helper()
	for _, s := range bothWays(t, socket) {
		if s.fromClient {
			all = append(all, s)
		}
	}
	return all
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
				ends.Talk(t, client, server)
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
