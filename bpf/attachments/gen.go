// SPDX-License-Identifier: Apache-2.0

// Package attachments holds the program that lists what is attached to interfaces.
package attachments

//go:generate ../../hack/bpf2go.sh List list.bpf.c -type attachment
