// SPDX-License-Identifier: Apache-2.0

// Package sockets holds the programs that look at the sockets of pods: the one that
// turns TCP sockets into MPTCP sockets, and the one that lists the tokens of those
// that are there.
package sockets

//go:generate ../../hack/bpf2go.sh Upgrade upgrade.bpf.c
//go:generate ../../hack/bpf2go.sh Tokens tokens.bpf.c -type token_pair
