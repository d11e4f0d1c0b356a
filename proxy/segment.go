// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"braid.dev/braid/bpf"
	programs "braid.dev/braid/bpf/proxy"
)

type flowKey = programs.FromClientRelayedKey

func keyOf(client, server netip.AddrPort, index int) (key flowKey) {
	key.Client.Word, key.ClientPort = bpf.Words(client.Addr()), bpf.Port(client.Port())
	key.Server.Word, key.ServerPort = bpf.Words(server.Addr()), bpf.Port(server.Port())
	key.Interface = uint32(index)
	return key
}

func clientOf(key flowKey) netip.AddrPort { return bpf.AddrPort(key.Client.Word, key.ClientPort) }

func serverOf(key flowKey) netip.AddrPort { return bpf.AddrPort(key.Server.Word, key.ServerPort) }

// ethernetLength is that of both addresses of a frame, before its protocol.
const ethernetLength = 12

// heldSegment is a client's SYN.
type heldSegment struct {
	key   flowKey
	frame []byte
}

var errShort = errors.New("the segment is cut off")

func parseHeld(sample []byte) (heldSegment, error) {
	var held programs.FromClientHeld
	if _, err := binary.Decode(sample, binary.NativeEndian, &held); err != nil {
		return heldSegment{}, fmt.Errorf("decoding a held segment: %w", err)
	}
	if held.Length < 14 || int(held.Length) > len(held.Frame) {
		return heldSegment{key: held.Key}, errShort
	}
	s := heldSegment{key: held.Key, frame: append([]byte(nil), held.Frame[:held.Length]...)}
	return s, s.complete()
}

// ethernet are the addresses of the frame.
func (s heldSegment) ethernet() [ethernetLength]byte { return [ethernetLength]byte(s.frame) }

func (s heldSegment) protocol() uint16 { return binary.BigEndian.Uint16(s.frame[ethernetLength:]) }

// complete sums the segment up: a client in a namespace of the same machine leaves that to
// whoever puts its frames on a wire.
func (s heldSegment) complete() error {
	key := s.key
	addresses := append(bytesOf(clientOf(key).Addr()), bytesOf(serverOf(key).Addr())...)
	at := 14 + 40
	if len(addresses) == 8 {
		at = 14 + int(s.frame[14]&0xf)*4
	}
	if len(s.frame) < at+20 {
		return errShort
	}
	segment := s.frame[at:]
	binary.BigEndian.PutUint16(segment[16:], 0)
	pseudo := binary.BigEndian.AppendUint32(addresses, uint32(len(segment)))
	pseudo = binary.BigEndian.AppendUint32(pseudo, 6)
	binary.BigEndian.PutUint16(segment[16:], checksum(append(pseudo, segment...)))
	return nil
}

func bytesOf(address netip.Addr) []byte { return address.AsSlice() }

func checksum(data []byte) uint16 {
	var sum uint32
	for ; len(data) > 1; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	if len(data) == 1 {
		sum += uint32(data[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
