// SPDX-License-Identifier: Apache-2.0

package traffic

import "bytes"

// comparison compares a stream with the payload.
type comparison struct {
	// rewrites lets single bytes pass that a box inverted or took out.
	rewrites  bool
	rewritten int64

	at int64 // in the stream as it was sent
}

// leastBetween is how far apart bytes that a box changed are on average, at least.
const leastBetween = 10_000

// matches tells whether the payload goes on with what was received.
func (c *comparison) matches(received []byte) bool {
	for len(received) > 0 {
		expected := payload[c.at%int64(len(payload)):]
		n := min(len(expected), len(received))
		if bytes.Equal(expected[:n], received[:n]) {
			received, c.at = received[n:], c.at+int64(n)
			continue
		}
		if !c.rewrites {
			return false
		}
		n = c.next(received[:n])
		if n < 0 {
			return false
		}
		received = received[n:]
	}
	return true
}

// next goes on to behind the next byte that differs, and returns how many were received
// until there; less than none when that is no work of a box.
func (c *comparison) next(received []byte) (n int) {
	for received[n] == c.sent(0) {
		n, c.at = n+1, c.at+1
	}
	switch received[n] {
	case ^c.sent(0):
		c.at++
	case c.sent(1):
		c.at += 2
	default:
		return -1
	}
	c.rewritten++
	if c.rewritten > 2+c.at/leastBetween {
		return -1
	}
	return n + 1
}

// sent is a byte of the payload, so many after the place of the comparison.
func (c *comparison) sent(after int64) byte { return payload[(c.at+after)%int64(len(payload))] }
