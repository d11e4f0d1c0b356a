// SPDX-License-Identifier: Apache-2.0

// Package buildinfo tells which build a program is.
package buildinfo

import "runtime/debug"

// Version is what the linker was told, or else what the build knows of itself.
func Version(linked string) string {
	if linked != "" {
		return linked
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		return info.Main.Version
	}
	return "unknown"
}
