// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Whatever a packet is: it is not lost, and where no block says that it acted,
// nothing has changed.
func FuzzPackets(f *testing.F) {
	dss := []byte{30, 8, 0x20, 1, 0, 0, 0, 9}
	for _, version := range []int{4, 6} {
		for _, vlan := range []bool{false, true} {
			s := segment{version: version, vlan: vlan, flags: ack, options: slices.Concat(timestamps, dss), window: 500}
			f.Add(s.frame())
			s.options = slices.Concat(timestamps, asks([]byte{4, 4, 1, 2}))
			f.Add(s.frame())
			s.payload = []byte("payload")
			f.Add(s.frame())
		}
	}
	c := newChain(f)
	c.call(f, "examples/dscp.bpf.c", "dscp", 0)
	c.call(f, "testdata/wrong.bpf.c", "wrong", 0)
	c.call(f, "examples/stamp.bpf.c", "stamp", 7)
	c.call(f, "testdata/own.bpf.c", "write_own", own(128, 7))
	c.call(f, "testdata/edits.bpf.c", "window", 9)
	c.call(f, "testdata/edits.bpf.c", "first_byte", 'p')
	c.call(f, "testdata/edits.bpf.c", "remove_subtype", 2)
	f.Fuzz(func(t *testing.T, frame []byte) {
		if _, _, err := c.try(t, frame); errors.Is(err, unix.EINVAL) {
			t.Skip("the kernel takes no such frame for a test run")
		}
		verdict, out, results := c.run(t, frame)
		if verdict != next {
			t.Errorf("the verdict is %d for\n%x", verdict, frame)
		}
		if !slices.Contains(results, acted) && !bytes.Equal(out, frame) {
			t.Errorf("nothing acted on\n%x, and it is\n%x", frame, out)
		}
	})
}
