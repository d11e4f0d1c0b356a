// SPDX-License-Identifier: Apache-2.0

package guestagent

import "encoding/binary"

// packer writes XDR (RFC 4506).
type packer struct{ data []byte }

func (p *packer) number(values ...uint32) {
	for _, value := range values {
		p.data = binary.BigEndian.AppendUint32(p.data, value)
	}
}

func (p *packer) text(value string) {
	p.number(uint32(len(value)))
	p.data = append(append(p.data, value...), make([]byte, padding(len(value)))...)
}

// padding brings a length to a multiple of four.
func padding(length int) int { return -length & 3 }

// unpacker reads XDR. Once something is missing all else is empty.
type unpacker struct {
	data   []byte
	failed bool
}

func (u *unpacker) bytes(count int) []byte {
	if u.failed || count > len(u.data) {
		u.failed, count = true, 0
	}
	taken := u.data[:count:count]
	u.data = u.data[count:]
	return taken
}

func (u *unpacker) number() uint32 {
	if taken := u.bytes(4); len(taken) == 4 {
		return binary.BigEndian.Uint32(taken)
	}
	return 0
}

func (u *unpacker) text() string {
	length := u.number()
	if uint64(length) > uint64(len(u.data)) {
		u.failed = true
		return ""
	}
	taken := u.bytes(int(length))
	u.bytes(padding(int(length)))
	return string(taken)
}

// optional reads a text that may be missing.
func (u *unpacker) optional() (text string, there bool) {
	switch u.number() {
	case 0:
		return "", false
	case 1:
		return u.text(), !u.failed
	}
	u.failed = true
	return "", false
}

// whole: all was there, and there is no more.
func (u *unpacker) whole() bool { return !u.failed && len(u.data) == 0 }
