// SPDX-License-Identifier: Apache-2.0

// Package job is what the host and its guests tell each other.
package job

// HostTag names the host's files in the guest.
const HostTag = "host"

// What begins lines of the guest about its work.
const (
	Booted = "@@ booted "
	Began  = "@@ began "
	Ended  = "@@ ended "
)

// Job is what a guest does between boot and switching off.
type Job struct {
	// Modules to load first, where the kernel does not do so when they are used.
	Modules []string
	// Runs in their order.
	Runs []Run
}

// Run runs one test binary.
type Run struct {
	// Package that it tests, relative to the repository.
	Package string
	// Binary and Directory are paths of the host.
	Binary, Directory string
	// Arguments of the binary.
	Arguments []string
}
