// SPDX-License-Identifier: Apache-2.0

package middlebox

import (
	"encoding/binary"
	"hash/fnv"
	"net/netip"
	"sync/atomic"
	"time"
)

// mapAcknowledged changes all numbers of the other direction's stream.
func (s *segment) mapAcknowledged(change func(uint32) uint32) {
	s.setAcknowledged(change(s.acknowledged()))
	for _, o := range s.options {
		for at := 2; o[0] == optionSACK && at+4 <= len(o); at += 4 {
			binary.BigEndian.PutUint32(o[at:], change(binary.BigEndian.Uint32(o[at:])))
		}
	}
}

// sequences gives each direction other sequence numbers, as boxes that choose initial
// ones do.
type sequences struct{ by map[ends]uint32 }

func newSequences() *sequences { return &sequences{map[ends]uint32{}} }

func (q *sequences) pass(s *segment) []passed {
	if s.is(syn, syn) {
		hash := fnv.New32a()
		_, _ = hash.Write([]byte(s.from.String() + s.to.String())) // never fails
		q.by[s.ends] = hash.Sum32()
	}
	s.setSequence(s.sequence() + q.by[s.ends])
	if by := q.by[s.reversed()]; s.is(ack, ack) && by != 0 {
		s.mapAcknowledged(func(to uint32) uint32 { return to - by })
	}
	return on(s)
}

func (*sequences) due(time.Time) []passed { return nil }

// translation gives who opens a connection another address and port: the last byte of
// the address is one that no pod has.
type translation struct {
	outside map[ends]ends // of segments from inside
	inside  map[ends]ends // of those that come back
}

const natHost, firstNATPort, natPorts = 0xfa, 20_000, 10_000

// natPort counts the ports that were given, by all boxes: they have one address.
var natPort atomic.Uint32

func newTranslation() *translation {
	return &translation{outside: map[ends]ends{}, inside: map[ends]ends{}}
}

func (n *translation) pass(s *segment) []passed {
	if isSYN(s) && n.outside[s.ends] == (ends{}) {
		n.add(s.ends)
	}
	if to, known := n.outside[s.ends]; known {
		s.setEnds(to)
	} else if to, known := n.inside[s.ends]; known {
		s.setEnds(to)
	}
	return on(s)
}

func (*translation) due(time.Time) []passed { return nil }

func (n *translation) add(from ends) {
	address := from.from.Addr().AsSlice()
	address[len(address)-1] = natHost
	translated, _ := netip.AddrFromSlice(address)
	to := ends{netip.AddrPortFrom(translated, uint16(firstNATPort+natPort.Add(1)%natPorts)), from.to}
	n.outside[from] = to
	n.inside[to.reversed()] = from.reversed()
}
