// SPDX-License-Identifier: Apache-2.0

// Package optiontest judges options that tests make up, by the code that judges those of
// peers, and paces by credits as senders do.
package optiontest

//go:generate ../../../hack/bpf2go.sh Judge judge.bpf.c -type verdict
//go:generate ../../../hack/bpf2go.sh Pace pace.bpf.c
//go:generate go run ../../../hack/enums judge_bpfel.o
