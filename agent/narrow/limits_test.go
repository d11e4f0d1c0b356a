// SPDX-License-Identifier: Apache-2.0

package narrow

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWhatALookFinds(t *testing.T) {
	const window, buffer = 6 << 20, 600_000
	for name, test := range map[string]struct {
		window, queued uint64
		data           backlog
		paced          bool
		want           sight
	}{
		"a full window, much of which waits for another path":                       {window: 64 << 10, queued: 10_000, data: backlog{all: 400_000, underWay: 64 << 10}, want: sight{full: true, narrow: true, stuck: true, ample: true}},
		"a full window, what is under way on its own path":                          {window: 64 << 10, queued: 60_000, data: backlog{all: 400_000, underWay: 64 << 10}, want: sight{full: true, narrow: true, ample: true}},
		"more than the window, of which the path takes little":                      {window: 64 << 10, queued: 10_000, data: backlog{all: 400_000, underWay: 20_000}, want: sight{ample: true}},
		"a window that is not full":                                                 {window: 64 << 10, queued: 10_000, data: backlog{all: 40_000, underWay: 30_000}, want: sight{}},
		"an application that writes little":                                         {window: window, queued: 1000, data: backlog{all: 10_000, underWay: 10_000, used: 12_000, buffer: buffer}, want: sight{content: true}},
		"a wide window and a full send buffer, of which much waits for a slow path": {window: window, queued: 100_000, data: backlog{all: buffer, underWay: buffer, used: buffer, buffer: buffer}, want: sight{full: true, stuck: true}},
		"the same with what is sent on its own path":                                {window: window, queued: 500_000, data: backlog{all: buffer, underWay: buffer, used: buffer, buffer: buffer}, want: sight{full: true}},
		"a send buffer from which the application is to write":                      {window: window, queued: 10_000, data: backlog{all: 300_000, underWay: 300_000, used: 300_000, buffer: buffer}, want: sight{content: true}},
		"a kernel that tells nothing of send buffers":                               {window: window, queued: 10_000, data: backlog{all: buffer, underWay: buffer}, want: sight{content: true}},
		"a full send buffer of a subflow whose pace is limited":                     {window: window, queued: 10_000, data: backlog{all: buffer, underWay: buffer, used: buffer, buffer: buffer}, paced: true, want: sight{content: true}},
	} {
		t.Run(name, func(t *testing.T) {
			subflows := []subflow{{window: test.window, queued: test.queued}, {window: test.window / 2, paced: test.paced}}
			require.Equal(t, test.want, seen(subflows, test.data))
		})
	}
}
