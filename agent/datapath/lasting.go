// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/uplink"
)

// Lasting tells how long the connections of an endpoint to a peer lasted, by the path on which they
// began.
type Lasting struct {
	// Endpoint and Peer are their numbers.
	Endpoint, Peer uint32
	// On has the paths by their numbers.
	On [uplink.MaxPaths]LastingOn
}

// LastingOn are the connections that began on one path since the programs were loaded.
type LastingOn struct {
	Begun, Ended uint32
	// Timed are so many of those that ended, of which it is known how long they lasted. Times is the sum of
	// the logarithms, to the base of 2, of how many times LastingTick each did, in units of LastingUnit; Squares is
	// that of their squares.
	Timed          uint32
	Times, Squares uint64
	// Total is the sum of how many times LastingTick each lasted, or LongestLasting if that is less, and
	// TotalSquares that of their squares.
	Total, TotalSquares uint64
	// Slow is true while new connections begin elsewhere.
	Slow bool
}

// LastingUnit is the part of a logarithm that is told, LastingTick the time that is told, and LongestLasting how
// many of them count of a connection in the sum of times.
const (
	LastingUnit    = 1.0 / (1 << uplink.LastingUnit)
	LastingTick    = time.Duration(1) << uplink.LastingTick
	LongestLasting = uplink.LongestLasting
)

// Lasting visits all that is known. It may be asked for at any time. There is none while nothing is loaded.
func (d *Datapath) Lasting(visit func(*Lasting)) error { return d.lasting.each(visit) }

// SetSlow has connections of an endpoint to a peer begin elsewhere than on a path for so long, and
// from then on now and then there; with 0 they begin there as on others.
func (d *Datapath) SetSlow(endpoint, peer uint32, path uint8, lasts time.Duration) error {
	return d.lasting.setSlow(uplink.ToUplinkLastingKey{Endpoint: endpoint, Peer: peer}, path, lasts)
}

// lastingTable reads and writes beside the rounds.
type lastingTable struct {
	loadedMaps
	entries entries.Reader[uplink.ToUplinkLastingKey, uplink.ToUplinkLasting]
}

func (t *lastingTable) each(visit func(*Lasting)) error {
	return t.do(func(maps *uplink.ToUplinkMaps) error {
		return t.entries.Each(maps.Lasting, func(key *uplink.ToUplinkLastingKey, value *uplink.ToUplinkLasting) {
			known := Lasting{Endpoint: key.Endpoint, Peer: key.Peer}
			for path := range known.On {
				known.On[path] = LastingOn{
					value.Begun[path], value.Ended[path], value.Timed[path], value.Times[path], value.Squares[path],
					value.Total[path], value.TotalSquares[path], value.Until[path] != 0,
				}
			}
			visit(&known)
		})
	})
}

// setSlow may lose a connection that ends at this moment from the sums.
func (t *lastingTable) setSlow(key uplink.ToUplinkLastingKey, path uint8, lasts time.Duration) error {
	until := uint32(0)
	if lasts > 0 {
		now, err := tick()
		if err != nil {
			return err
		}
		until = now + uint32(lasts>>uplink.Tick) | 1
	}
	return t.do(func(maps *uplink.ToUplinkMaps) error {
		var value uplink.ToUplinkLasting
		err := maps.Lasting.Lookup(key, &value)
		if err == nil {
			value.Until[path] = until
			err = maps.Lasting.Update(key, value, ebpf.UpdateExist)
		}
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("saying on which paths connections begin: %w", err)
		}
		return nil
	})
}

// forget forgets what is known of numbers that are somebody else's soon.
func (t *lastingTable) forget(retired node.Numbers) error {
	if len(retired[node.KindPath])+len(retired[node.KindPeer])+len(retired[node.KindEndpoint]) == 0 {
		return nil
	}
	return t.do(func(maps *uplink.ToUplinkMaps) error {
		var gone []uplink.ToUplinkLastingKey
		err := t.entries.Each(maps.Lasting, func(key *uplink.ToUplinkLastingKey, _ *uplink.ToUplinkLasting) {
			if len(retired[node.KindPath]) > 0 || retired[node.KindPeer][key.Peer] || retired[node.KindEndpoint][key.Endpoint] {
				gone = append(gone, *key)
			}
		})
		return errors.Join(err, entries.Delete(maps.Lasting, gone...))
	})
}
