// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"testing"

	"braid.dev/braid/bpf/endpoint"
)

func TestAnAttemptIsNoSubflow(t *testing.T) {
	const both = endpoint.KnownSYN | endpoint.KnownSYNACK
	tests := map[string]struct {
		known   uint8
		packets [2]uint64
		wanted  bool
	}{
		"a SYN without an answer, though it is sent again":       {endpoint.KnownSYN, [2]uint64{3, 0}, true},
		"the answer to a SYN that came before the rules":         {endpoint.KnownSYNACK, [2]uint64{0, 1}, true},
		"such an answer, sent again and again":                   {endpoint.KnownSYNACK | endpoint.KnownHandshake, [2]uint64{0, 5}, true},
		"a SYN and its answer, and nothing since":                {both, [2]uint64{1, 1}, true},
		"a join that was answered, and nothing since":            {both | endpoint.KnownHandshake, [2]uint64{1, 1}, true},
		"a handshake that went on":                               {both, [2]uint64{2, 1}, false},
		"a handshake of which the rules saw the last two thirds": {endpoint.KnownSYNACK, [2]uint64{1, 1}, false},
		"a subflow that was there before the rules":              {0, [2]uint64{0, 1}, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			record := &SubflowRecord{Known: test.known}
			for direction, packets := range test.packets {
				record.Traffic[direction].Packets = packets
				record.Traffic[direction].Begun = uint8(min(packets, 1))
			}
			if got := isAttempt(record); got != test.wanted {
				t.Errorf("isAttempt is %v", got)
			}
		})
	}
}
