// SPDX-License-Identifier: Apache-2.0

//go:build tools

// Package tools names the parts of containerd that a node needs, so that go.mod
// holds them.
package tools

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
