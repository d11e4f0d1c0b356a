// SPDX-License-Identifier: Apache-2.0

// Package seed holds the program that tells the peers' tokens of MPTCP connections.
package seed

//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package seed -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Tokens tokens.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
