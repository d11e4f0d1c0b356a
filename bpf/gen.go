// SPDX-License-Identifier: Apache-2.0

// Package bpf holds the packet programs of the datapath, compiled, and Go's view
// of what they share with the agent.
package bpf

//go:generate go tool -modfile=../hack/tools/go.mod bpf2go -go-package bpf -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 ToUplink to_uplink.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Iinclude
//go:generate go tool -modfile=../hack/tools/go.mod bpf2go -go-package bpf -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 FromUplink from_uplink.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Iinclude
//go:generate go tool -modfile=../hack/tools/go.mod bpf2go -go-package bpf -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Empty empty.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Iinclude
