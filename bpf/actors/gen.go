// SPDX-License-Identifier: Apache-2.0

// Package actors runs the actors of the endpoint half by themselves: packet in,
// packet out.
package actors

//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package actors -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Harness harness.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package actors -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 -type chain Attached attached.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
