// SPDX-License-Identifier: Apache-2.0

// Package block holds the program in which blocks of one's own are tried out,
// compiled, and Go's view of what a block is given.
package block

//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package block -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 -type block_input Trial trial.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
