// SPDX-License-Identifier: Apache-2.0

// Package guard holds the programs that keep endpoints within the guardrails,
// compiled, and Go's view of what they share with the agent.
package guard

//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package guard -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 -type allowance -type usage Meter meter.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package guard -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 OwnSource own_source.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package guard -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 LeaveQueue leave_queue.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
