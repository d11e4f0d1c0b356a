// SPDX-License-Identifier: Apache-2.0

// Package numbers has the form in which things are asked of peers, on the wire: see
// docs/transport.md and bpf/include/requests.h.
package numbers

import (
	"hash/fnv"
	"math/bits"
)

// The form in which a rate is asked for.
const (
	mantissaBits = 11
	kilobit      = 1000
)

// OfRate is the number of a rate in bits a second, at most what was meant. The lesser of
// two numbers is the lesser rate.
func OfRate(rate int64) uint16 {
	kilobits := uint64(max(rate/kilobit, 1))
	exponent := max(bits.Len64(kilobits)-mantissaBits, 0)
	return uint16(exponent<<mantissaBits) | uint16(kilobits>>exponent)
}

// OfName is FNV-1a of 32 bits of the name of a congestion control or strategy, the halves joined by exclusive or.
func OfName(name string) uint16 {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name))
	return uint16(sum.Sum32()>>16 ^ sum.Sum32()&0xffff)
}
