// SPDX-License-Identifier: Apache-2.0

// Package proxy holds the programs that lead a client's connections through its relay,
// compiled, and Go's view of what they share with the proxy.
package proxy

//go:generate ../../hack/bpf2go.sh FromClient from_client.bpf.c -type held
//go:generate ../../hack/bpf2go.sh ToClient to_client.bpf.c
//go:generate ../../hack/bpf2go.sh FromRelay from_relay.bpf.c
//go:generate ../../hack/bpf2go.sh Listen listen.bpf.c
//go:generate go run ../../hack/enums fromclient_bpfel.o
