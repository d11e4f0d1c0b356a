// SPDX-License-Identifier: Apache-2.0

// Package actiontest runs the actions of the endpoint half by themselves: packet in,
// packet out.
package actiontest

//go:generate ../../../hack/bpf2go.sh Harness harness.bpf.c
//go:generate ../../../hack/bpf2go.sh Attached attached.bpf.c -type chain
