// SPDX-License-Identifier: Apache-2.0

// Package guard holds the programs that keep endpoints within the guardrails,
// compiled, and Go's view of what they share with the agent.
package guard

//go:generate ../../hack/bpf2go.sh Meter meter.bpf.c -type allowance -type usage
//go:generate ../../hack/bpf2go.sh OwnSource own_source.bpf.c
//go:generate ../../hack/bpf2go.sh Unparsable unparsable.bpf.c
//go:generate ../../hack/bpf2go.sh NameSender name_sender.bpf.c
//go:generate ../../hack/bpf2go.sh LeaveQueue leave_queue.bpf.c
//go:generate go run ../../hack/enums meter_bpfel.o
