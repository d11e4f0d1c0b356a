// SPDX-License-Identifier: Apache-2.0

// Package bpf holds the packet programs, each part in a package of its own, and what
// Go needs to read and write what all of them share.
package bpf
