// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyBytesThatABoxMayChangeMatch(t *testing.T) {
	sent := payload[:100_000]
	flipped := bytes.Clone(sent)
	flipped[40_000] ^= 0xff
	shorter := slices.Concat(sent[:40_000], sent[40_001:])
	other := bytes.Clone(sent)
	other[40_000] ^= 1
	misplaced := slices.Concat(sent[:40_000], sent[50_000:])
	repeated := slices.Concat(sent[:40_000], sent[39_000:])
	for name, test := range map[string]struct {
		received         []byte
		matches, rewrote bool
	}{
		"the same":          {sent, true, true},
		"a byte inverted":   {flipped, false, true},
		"a byte taken out":  {shorter, false, true},
		"another byte":      {other, false, false},
		"a part missing":    {misplaced, false, false},
		"a part sent twice": {repeated, false, false},
	} {
		for _, piece := range []int{1000, len(sent)} {
			matches := func(rewrites bool) bool {
				c := comparison{rewrites: rewrites}
				for part := range slices.Chunk(test.received, piece) {
					if !c.matches(part) {
						return false
					}
				}
				return true
			}
			require.Equal(t, test.matches, matches(false), name)
			require.Equal(t, test.rewrote, matches(true), name)
		}
	}
}
