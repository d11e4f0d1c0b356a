// SPDX-License-Identifier: Apache-2.0

// Package standin holds the yardsticks of the bench, which no agent loads: the chain
// of eMPTCP, made again from its description, in which a block is a program of its own
// that parses the packet anew and ends in a tail call; and a chain as straight code.
package standin

//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package standin -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Standin standin.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package standin -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Straight straight.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package standin -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 Again again.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
