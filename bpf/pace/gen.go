// SPDX-License-Identifier: Apache-2.0

// Package pace holds the programs that govern the sockets of endpoints: their
// pace and their congestion control.
package pace

//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package pace -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Pace pace.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
