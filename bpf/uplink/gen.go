// SPDX-License-Identifier: Apache-2.0

// Package uplink holds the packet programs of the uplink half, compiled, and Go's
// view of what they share with the agent.
package uplink

//go:generate ../../hack/bpf2go.sh ToUplink to_uplink.bpf.c
//go:generate ../../hack/bpf2go.sh FromUplink from_uplink.bpf.c
//go:generate ../../hack/bpf2go.sh ToTunnel to_tunnel.bpf.c
//go:generate go run ../../hack/enums touplink_bpfel.o
