// SPDX-License-Identifier: Apache-2.0

package bpf

//go:generate ../hack/bpf2go.sh Upgrade upgrade.bpf.c
