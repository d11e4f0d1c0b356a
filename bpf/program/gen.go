// SPDX-License-Identifier: Apache-2.0

// Package program holds the program in which those of an admin's own are tried out,
// compiled, and Go's view of what such a program is given.
package program

//go:generate ../../hack/bpf2go.sh Trial trial.bpf.c -type block_input
