// SPDX-License-Identifier: Apache-2.0

// Package baseline holds the yardsticks of the bench, which no agent loads: the chain
// of eMPTCP, made again from its description, in which a block is a program of its own
// that parses the packet anew and ends in a tail call; and a chain as straight code.
package baseline

//go:generate ../../bpf2go.sh EMPTCP emptcp.bpf.c
//go:generate ../../bpf2go.sh Straight straight.bpf.c
//go:generate ../../bpf2go.sh Again again.bpf.c
//go:generate ../../bpf2go.sh Bond bond.bpf.c
