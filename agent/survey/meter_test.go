// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/agentapi"
)

func TestTheRateOfANICIsThatOfItsCounters(t *testing.T) {
	start := time.Unix(1000, 0)
	before := counted{index: 3, at: start, sent: 1000, received: 5000}
	for name, test := range map[string]struct {
		before counted
		flags  uint32
		want   agentapi.NICRate
	}{
		"both directions count":                        {before, unix.IFF_UP | unix.IFF_LOWER_UP, agentapi.NICRate{Up: true, SentBitsPerSecond: 4000, ReceivedBitsPerSecond: 8000}},
		"without a carrier it is not up":               {before, unix.IFF_UP, agentapi.NICRate{SentBitsPerSecond: 4000, ReceivedBitsPerSecond: 8000}},
		"a NIC that was read never has no rate":        {counted{}, 0, agentapi.NICRate{}},
		"another NIC of the same name has none either": {counted{index: 2, at: start, sent: 1, received: 1}, 0, agentapi.NICRate{}},
		"counters that went back began anew":           {counted{index: 3, at: start, sent: 9000, received: 9000}, 0, agentapi.NICRate{SentBitsPerSecond: 8000, ReceivedBitsPerSecond: 28000}},
	} {
		t.Run(name, func(t *testing.T) {
			link := &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{
				Name: "blue", Index: 3, RawFlags: test.flags, Statistics: &netlink.LinkStatistics{TxBytes: 2000, RxBytes: 7000},
			}}
			now := countedOf(link.Attrs())
			now.at = start.Add(2 * time.Second)
			test.want.Name = "blue"
			require.Equal(t, test.want, rateOf(link, test.before, now))
		})
	}
}

func TestANICThatIsNotThereIsLeftOut(t *testing.T) {
	var meter Meter
	for range 2 {
		rates, err := meter.Read([]string{"lo", "no-such-nic"})
		require.NoError(t, err)
		require.Len(t, rates, 1)
		require.Equal(t, "lo", rates[0].Name)
		require.Zero(t, rates[0].SpeedMbit, "what virtual links name is made up")
	}
}
