// SPDX-License-Identifier: Apache-2.0

// Package guest holds the programs that give a guest's connections further subflows,
// compiled, and Go's view of what they share with the agent.
package guest

//go:generate ../../hack/bpf2go.sh FromGuest from_guest.bpf.c
//go:generate ../../hack/bpf2go.sh ToGuest to_guest.bpf.c
//go:generate ../../hack/bpf2go.sh AskPeers ask_peers.bpf.c -type asked_connection_key -type asked_connection
//go:generate go run ../../hack/enums fromguest_bpfel.o
