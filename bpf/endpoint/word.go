// SPDX-License-Identifier: Apache-2.0

package endpoint

// Word says which chain an endpoint has: the member chain of struct attachment, whose
// parts are CHAIN_SLOT, CHAIN_ROW and CHAIN_EPOCH of bpf/include/endpoint/chain.h. One
// step of the processor changes it.
type Word uint64

const (
	rowAt   = 16
	epochAt = 32
)

// MakeWord is the word of the chain in a slot, whose counters are in a row. Another
// epoch makes subflows be classified anew.
func MakeWord(slot, row uint16, epoch uint32) Word {
	return Word(slot) | Word(row)<<rowAt | Word(epoch)<<epochAt
}

// Slot is the chain's place in the map chains.
func (w Word) Slot() uint16 { return uint16(w) }

// Row is the place of its counters in the map chain_counters.
func (w Word) Row() uint16 { return uint16(w >> rowAt) }

// Epoch tells it from chains that were in the same slot.
func (w Word) Epoch() uint32 { return uint32(w >> epochAt) }
