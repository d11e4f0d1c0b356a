// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"bytes"
	"encoding/hex"
)

// span is a named part of a frame.
type span struct {
	field  string
	offset int
	data   []byte
}

// tcpLength is that of a header without options.
const tcpLength = 20

// part is a field of a header, from its beginning on.
type part struct {
	field      string
	at, length int
}

var (
	ipv4Parts = []part{{"IP header", 0, 2}, {"IP length", 2, 2}, {"IP identification", 4, 4}, {"IP TTL", 8, 1}, {"IP protocol", 9, 1},
		{"IP checksum", 10, 2}, {"IP source", 12, 4}, {"IP destination", 16, 4}}
	ipv6Parts = []part{{"IP header", 0, 4}, {"IP length", 4, 2}, {"IP next header", 6, 1}, {"IP hop limit", 7, 1},
		{"IP source", 8, 16}, {"IP destination", 24, 16}}
	tcpParts = []part{{"TCP source port", 0, 2}, {"TCP destination port", 2, 2}, {"TCP sequence", 4, 4}, {"TCP acknowledgement", 8, 4},
		{"TCP header length", 12, 1}, {"TCP flags", 13, 1}, {"TCP window", 14, 2}, {"TCP checksum", 16, 2}, {"TCP urgent", 18, 2}}
)

// spans takes a frame apart; nil for what is no TCP segment.
func spans(frame []byte) []span {
	seen, ok := parse(frame)
	if !ok {
		return nil
	}
	parts := ipv4Parts
	if seen.from.Addr().Is6() {
		parts = ipv6Parts
	}
	all := []span{{"Ethernet header", 0, frame[:seen.ipAt]}}
	all = append(all, cut(frame, seen.ipAt, parts)...)
	all = append(all, cut(frame, seen.tcpAt, tcpParts)...)
	options, payload := seen.tcpAt+tcpLength, seen.tcpAt+len(seen.tcp.Contents)
	end := payload + len(seen.tcp.Payload)
	return append(all, span{"TCP options", options, frame[options:payload]}, span{"payload", payload, frame[payload:end]})
}

func cut(frame []byte, at int, parts []part) (all []span) {
	for _, p := range parts {
		all = append(all, span{p.field, at + p.at, frame[at+p.at : at+p.at+p.length]})
	}
	return all
}

// changes compares two frames field by field.
func changes(before, after []byte) (found []Change) {
	if bytes.Equal(before, after) {
		return nil
	}
	old, now := spans(before), spans(after)
	if len(old) != len(now) || len(old) == 0 {
		return []Change{{Field: "frame", Before: hex.EncodeToString(before), After: hex.EncodeToString(after)}}
	}
	for i := range old {
		if !bytes.Equal(old[i].data, now[i].data) {
			found = append(found, Change{old[i].offset, old[i].field, hex.EncodeToString(old[i].data), hex.EncodeToString(now[i].data)})
		}
	}
	return found
}
