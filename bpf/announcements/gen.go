// SPDX-License-Identifier: Apache-2.0

// Package announcements holds the program that has announced addresses wait until a
// connection lasts, compiled, and Go's view of what it shares with the agent.
package announcements

//go:generate ../../hack/bpf2go.sh Hold hold.bpf.c -type told
//go:generate go run ../../hack/enums hold_bpfel.o
