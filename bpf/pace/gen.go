// SPDX-License-Identifier: Apache-2.0

// Package pace holds the programs that govern the sockets of endpoints: their
// pace and their congestion control.
package pace

//go:generate ../../hack/bpf2go.sh Pace pace.bpf.c
