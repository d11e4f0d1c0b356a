// SPDX-License-Identifier: Apache-2.0

// Package standin holds the yardsticks of the bench, which no agent loads: the chain
// of eMPTCP, made again from its description, in which a block is a program of its own
// that parses the packet anew and ends in a tail call; and a chain as straight code.
package standin

//go:generate ../../hack/bpf2go.sh Standin standin.bpf.c
//go:generate ../../hack/bpf2go.sh Straight straight.bpf.c
//go:generate ../../hack/bpf2go.sh Again again.bpf.c
