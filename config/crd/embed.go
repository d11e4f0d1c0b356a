// SPDX-License-Identifier: Apache-2.0

// Package crd holds the definitions of Braid's kinds as they are installed, for
// commands that check manifests where there is no cluster.
package crd

import "embed"

// Files are the definitions, one CustomResourceDefinition a file.
//
//go:embed braid.dev_*.yaml
var Files embed.FS
