// SPDX-License-Identifier: Apache-2.0

package product

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyFewRequestsMayFailAndOnlyByResets(t *testing.T) {
	const form = "Complete requests:      %d\nFailed requests:        %d\n%sRequests per second:    1234.50 [#/sec] (mean)\n"
	for name, test := range map[string]struct {
		complete, failed int
		reasons          string
		resets           float64
		refused          bool
	}{
		"none failed":                           {complete: 4000},
		"one was reset":                         {4000, 3, "   (Connect: 0, Receive: 1, Length: 1, Exceptions: 1)\n", 1, false},
		"too many were reset":                   {4000, 15, "   (Connect: 0, Receive: 5, Length: 5, Exceptions: 5)\n", 0, true},
		"an answer had another length":          {4000, 1, "   (Connect: 0, Receive: 0, Length: 1, Exceptions: 0)\n", 0, true},
		"an answer more than was reset had one": {4000, 3, "   (Connect: 0, Receive: 1, Length: 2, Exceptions: 0)\n", 0, true},
		"a connection was refused":              {4000, 1, "   (Connect: 1, Receive: 0, Length: 0, Exceptions: 0)\n", 0, true},
		"an answer was an error":                {4000, 0, "Non-2xx responses:      1\n", 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := requestsIn(fmt.Sprintf(form, test.complete, test.failed, test.reasons))
			if test.refused {
				require.ErrorContains(t, err, "ab says")
				return
			}
			require.NoError(t, err)
			require.Equal(t, requests{1234.5, test.resets}, got)
		})
	}
	_, err := requestsIn("apr_socket_connect(): Connection refused (111)")
	require.ErrorContains(t, err, "ab says")
}
