// SPDX-License-Identifier: Apache-2.0

package bpf

//go:generate go tool -modfile=../hack/tools/go.mod bpf2go -go-package bpf -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Upgrade upgrade.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -Iinclude
