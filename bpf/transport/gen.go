// SPDX-License-Identifier: Apache-2.0

// Package transport holds the programs that give the sockets of pods the settings of
// their policies.
package transport

//go:generate ../../hack/bpf2go.sh Transport transport.bpf.c -type congestion -type acceptance -type exchange -type asked_rate_key -type agent_request -type credit_flow_key -type credit_flow -type credit_load -type address -type prefix
//go:generate go run ../../hack/enums transport_bpfel.o
