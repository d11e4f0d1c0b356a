// SPDX-License-Identifier: Apache-2.0

package program_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/bpf/transport"
)

// Braid's own types of requests leave those from here on to programs of one's own.
const firstOwnType = 128

// own is the parameter of testdata/own.bpf.c.
func own(kind, number int64) int64 { return kind<<16 | number }

// asks is Braid's option with these numbers.
func asks(numbers ...[]byte) []byte {
	option := []byte{transport.OptionExperiment, byte(4 + 4*len(numbers)), transport.Experiment >> 8, transport.Experiment & 0xff}
	return slices.Concat(append([][]byte{option}, numbers...)...)
}

func TestTheTypesOfProgramsAreNoneOfBraids(t *testing.T) {
	require.Less(t, transport.Requests, firstOwnType)
}

func TestANumberOfOnesOwnStandsInTheOptionOfRequests(t *testing.T) {
	rate, mine := []byte{4, 4, 0x12, 0x34}, []byte{128, 4, 0x56, 0x78}
	other := []byte{transport.OptionExperiment, 8, 0xb5, 0xa1, 1, 2, 3, 4}
	timeout := []byte{transport.OptionUserTimeout, 4, 0, 7}
	sack := slices.Concat([]byte{1, 1, 5, 18}, make([]byte, 16)) // leaves 8 bytes
	for name, test := range map[string]struct {
		before, after []byte
		result        int32
	}{
		"alone":                         {timestamps, slices.Concat(timestamps, asks(mine)), acted},
		"behind what Braid asks for":    {slices.Concat(timestamps, asks(rate)), slices.Concat(timestamps, asks(rate, mine)), acted},
		"in the place of another one":   {slices.Concat(timestamps, asks([]byte{128, 4, 9, 9}, rate)), slices.Concat(timestamps, asks(mine, rate)), acted},
		"beside another experiment":     {slices.Concat(timestamps, other), slices.Concat(timestamps, other, asks(mine)), acted},
		"in the last room":              {slices.Concat(timestamps, sack), slices.Concat(timestamps, sack, asks(mine)), acted},
		"without room":                  {slices.Concat(timestamps, sack, []byte{1, 1, 1, 1}), nil, untouched},
		"without room behind Braid's":   {slices.Concat(timestamps, []byte{1, 1, 1, 1}, make([]byte, 0), asks(rate, rate, rate, rate, rate)), nil, untouched},
		"before what follows":           {slices.Concat(asks(rate), timeout, timestamps), slices.Concat(asks(rate, mine), timeout, timestamps), acted},
		"before an end mark":            {slices.Concat(asks(rate), []byte{0, 0, 0, 0}), slices.Concat(asks(rate, mine), []byte{1, 1, 1, 1}), acted},
		"in options that do not add up": {slices.Concat(timestamps, []byte{8, 60, 0, 0}), nil, untouched},
	} {
		t.Run(name, func(t *testing.T) {
			forEachKind(t, func(t *testing.T, s segment) {
				c := newChain(t)
				c.call(t, "testdata/own.bpf.c", "write_own", own(128, 0x5678))
				s.options = test.before
				out := c.expect(t, s.frame(), next, test.result)
				if test.after != nil {
					s.options = test.after
				}
				s.expect(t, out)
			})
		})
	}
}

func TestANumberOfOnesOwnIsWrittenToPureACKsAlone(t *testing.T) {
	c := newChain(t)
	c.call(t, "testdata/own.bpf.c", "write_own", own(128, 1))
	forEachKind(t, func(t *testing.T, s segment) {
		data, first := s, s
		data.payload, first.flags = []byte("data"), syn
		data.expect(t, c.expect(t, data.frame(), next, untouched))
		first.expect(t, c.expect(t, first.frame(), next, untouched))
	})
}

func TestBraidsOwnTypesAreNotForPrograms(t *testing.T) {
	for _, kind := range []int64{0, 1, 5, 127, 256} {
		c := newChain(t)
		c.call(t, "testdata/own.bpf.c", "write_own", own(kind, 7))
		s := segment{version: 4, flags: ack, options: timestamps}
		s.expect(t, c.expect(t, s.frame(), next, untouched))
	}
	c := newChain(t)
	c.call(t, "testdata/own.bpf.c", "read_own", own(4, 0x1234))
	c.expect(t, segment{version: 4, flags: ack, options: asks([]byte{4, 4, 0x12, 0x34})}.frame(), next, notSelected)
}

func TestANumberOfOnesOwnIsReadFromTheFirstOptionOfBraids(t *testing.T) {
	mine := []byte{200, 4, 0, 7}
	for name, test := range map[string]struct {
		options []byte
		there   bool
	}{
		"alone":                    {asks(mine), true},
		"behind Braid's":           {asks([]byte{1, 4, 0, 10}, mine), true},
		"behind others":            {slices.Concat(timestamps, []byte{253, 4, 0xb5, 0xa1}, asks(mine)), true},
		"the first of two":         {asks(mine, []byte{200, 4, 0, 8}), true},
		"the second of two":        {asks([]byte{200, 4, 0, 8}, mine), false},
		"another type":             {asks([]byte{201, 4, 0, 7}), false},
		"of another length":        {asks([]byte{200, 3, 0, 7}), false},
		"behind a wrong length":    {asks([]byte{1, 8, 0, 0}, mine), false},
		"in another option":        {slices.Concat([]byte{253, 8, 0xb5, 0xa1}, mine), false},
		"behind the option's end":  {slices.Concat([]byte{253, 4, 0xb8, 0x1d}, mine), false},
		"behind the end mark":      {slices.Concat([]byte{0, 0, 0, 0}, asks(mine)), false},
		"in a second option":       {slices.Concat(asks([]byte{1, 4, 0, 1}), asks(mine)), false},
		"in one that is too long":  {slices.Concat([]byte{253, 60, 0xb8, 0x1d}, mine), false},
		"in one that is too short": {[]byte{253, 2, 0xb8, 0x1d, 200, 4, 0, 7}, false},
		"nowhere":                  {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			result := int32(notSelected)
			if test.there {
				result = untouched
			}
			forEachKind(t, func(t *testing.T, s segment) {
				c := newChain(t)
				c.call(t, "testdata/own.bpf.c", "read_own", own(200, 7))
				s.options = test.options
				s.expect(t, c.expect(t, s.frame(), next, result))
			})
		})
	}
}
