// SPDX-License-Identifier: Apache-2.0

package health

import (
	"testing"
	"time"
)

func TestPacketsAreReadAsTheyWereWritten(t *testing.T) {
	for name, p := range map[string]packet{
		"a request":                   {kind: kindRequest, nonce: 0x0123456789abcdef},
		"a reply":                     {kind: kindReply, nonce: 1<<64 - 1, held: 1234567, queued: 234567, interval: 250 * time.Millisecond},
		"a reply of the longest time": {kind: kindReply, held: 1<<32 - 1, queued: 1<<32 - 1, interval: 65535 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			wire := p.bytes()
			got, ok := parse(wire[:])
			if !ok || got != p {
				t.Errorf("read %+v %v, wrote %+v", got, ok, p)
			}
		})
	}
}

func TestTimesThatDoNotFitAreCut(t *testing.T) {
	wire := packet{kind: kindReply, held: time.Hour, interval: time.Hour}.bytes()
	if got, _ := parse(wire[:]); got.held != 1<<32-1 || got.interval != 65535*time.Millisecond {
		t.Errorf("an hour became %s and %s", got.held, got.interval)
	}
	wire = packet{kind: kindReply, held: -1, interval: -1}.bytes()
	if got, _ := parse(wire[:]); got.held != 0 || got.interval != 0 {
		t.Errorf("a negative time became %s and %s", got.held, got.interval)
	}
}

func TestPacketsOfOthersAreNotRead(t *testing.T) {
	whole := packet{kind: kindRequest, nonce: 7}.bytes()
	changed := func(at int, to byte) []byte {
		wire := append([]byte(nil), whole[:]...)
		wire[at] = to
		return wire
	}
	for name, wire := range map[string][]byte{
		"empty":                             nil,
		"a byte short":                      whole[:packetLength-1],
		"a byte long":                       append(whole[:], 0),
		"another magic":                     changed(0, 'b'),
		"a later version":                   changed(4, packetVersion+1),
		"no kind":                           changed(5, 0),
		"another kind":                      changed(5, 4),
		"a large request that is not large": changed(5, kindLarge),
		"a large reply":                     append(changed(5, kindReply), 0),
	} {
		t.Run(name, func(t *testing.T) {
			if p, ok := parse(wire); ok {
				t.Errorf("read %+v", p)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, kind := range []uint8{kindRequest, kindReply, kindLarge} {
		wire := packet{kind: kind, nonce: 42, held: 5, interval: time.Second}.bytes()
		f.Add(wire[:])
		f.Add(append(wire[:], 0))
	}
	f.Add([]byte("BRDP"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		p, ok := parse(wire)
		if !ok {
			return
		}
		again := p.bytes()
		if read, ok := parse(append(again[:], wire[packetLength:]...)); !ok || read != p {
			t.Errorf("%x reads %+v, and written again %+v", wire, p, read)
		}
	})
}
