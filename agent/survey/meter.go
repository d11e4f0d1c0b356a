// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/agentapi"
)

// Meter makes rates of the counters of NICs, from one reading to the next. The zero value
// has read nothing.
type Meter struct{ before map[string]counted }

type counted struct {
	index          int
	at             time.Time
	sent, received uint64
}

// Read returns what changed since the reading before. A NIC that is not there is left out,
// and one that is new, by its index too, has carried nothing yet.
func (m *Meter) Read(nics []string) (rates []agentapi.NICRate, err error) {
	now := map[string]counted{}
	for _, name := range nics {
		link, err := netlink.LinkByName(name)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("reading the NIC %s: %w", name, err)
		}
		now[name] = countedOf(link.Attrs())
		rates = append(rates, rateOf(link, m.before[name], now[name]))
	}
	m.before = now
	return rates, nil
}

func countedOf(attributes *netlink.LinkAttrs) counted {
	found := counted{index: attributes.Index, at: time.Now()}
	if statistics := attributes.Statistics; statistics != nil {
		found.sent, found.received = statistics.TxBytes, statistics.RxBytes
	}
	return found
}

func rateOf(link netlink.Link, before, now counted) agentapi.NICRate {
	const usable = unix.IFF_UP | unix.IFF_LOWER_UP
	rate := agentapi.NICRate{Name: link.Attrs().Name, Up: link.Attrs().RawFlags&usable == usable}
	if isHardware(link.Type()) {
		rate.SpeedMbit = speed(rate.Name)
	}
	if before.index == now.index {
		elapsed := now.at.Sub(before.at)
		rate.SentBitsPerSecond = agentapi.BitsPerSecond(now.sent, before.sent, elapsed)
		rate.ReceivedBitsPerSecond = agentapi.BitsPerSecond(now.received, before.received, elapsed)
	}
	return rate
}
