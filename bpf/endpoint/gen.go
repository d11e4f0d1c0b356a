// SPDX-License-Identifier: Apache-2.0

// Package endpoint holds the packet programs of the endpoint half, compiled, and
// Go's view of what they share with the agent.
package endpoint

//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package endpoint -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 -type address -type traffic -type limit -type chain -type selector -type rule -type action -type event FromEndpoint from_endpoint.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
//go:generate go tool -modfile=../../hack/tools/go.mod bpf2go -go-package endpoint -target bpfel,bpfeb -cc clang-19 -strip llvm-strip-19 ToEndpoint to_endpoint.bpf.c -- -O2 -g -mcpu=v3 -Wall -Wextra -Werror -I../include
