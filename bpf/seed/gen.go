// SPDX-License-Identifier: Apache-2.0

// Package seed holds the program that tells the peers' tokens of MPTCP connections.
package seed

//go:generate ../../hack/bpf2go.sh Tokens tokens.bpf.c
