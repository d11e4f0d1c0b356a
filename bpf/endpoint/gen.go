// SPDX-License-Identifier: Apache-2.0

// Package endpoint holds the packet programs of the endpoint half, compiled, and
// Go's view of what they share with the agent.
package endpoint

//go:generate ../../hack/bpf2go.sh FromEndpoint from_endpoint.bpf.c -type address -type traffic -type limit -type chain -type selector -type rule -type action -type event -type steady
//go:generate ../../hack/bpf2go.sh ToEndpoint to_endpoint.bpf.c
//go:generate ../../hack/bpf2go.sh AtNIC at_nic.bpf.c
//go:generate go run ../../hack/enums fromendpoint_bpfel.o
