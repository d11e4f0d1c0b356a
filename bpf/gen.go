// SPDX-License-Identifier: Apache-2.0

// Package bpf holds the packet programs of the datapath, compiled, and Go's view
// of what they share with the agent.
package bpf

//go:generate ../hack/bpf2go.sh ToUplink to_uplink.bpf.c
//go:generate ../hack/bpf2go.sh FromUplink from_uplink.bpf.c
//go:generate ../hack/bpf2go.sh Empty empty.bpf.c
