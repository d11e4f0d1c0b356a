// SPDX-License-Identifier: Apache-2.0

// Package pathmanager holds the filter that keeps short connections from the agent,
// compiled, and Go's view of what it shares with the agent.
package pathmanager

//go:generate ../../hack/bpf2go.sh Young young.bpf.c
//go:generate go run ../../hack/enums young_bpfel.o
