// SPDX-License-Identifier: Apache-2.0

// Package job is what the host and its guests tell each other.
package job

// HostTag names the host's files in the guest.
const HostTag = "host"

// What begins lines about the guest's work.
const (
	Booting = "@@ booting " // how, which the host writes
	Booted  = "@@ booted "  // the kernel's release
	Began   = "@@ began "   // a run's key
	Ended   = "@@ ended "   // its result
)

// Results of a run; any other one says why its program did not pass.
const (
	OK      = "ok"
	Refused = "refused: what it stands on has failed"
)

// Job is what a guest does between boot and switching off.
type Job struct {
	// Modules to load first, where the kernel does not do so when they are used.
	Modules []string
	// Failed are names of runs of earlier boots that failed.
	Failed []string
	// Runs in their order.
	Runs []Run
}

// Run runs one test binary.
type Run struct {
	// Name of the run, and Hash of what it tests.
	Name, Hash string
	// Needs names the run without whose success this one is refused; "" for none.
	Needs string
	// Binary and Directory are paths of the host.
	Binary, Directory string
	// Arguments of the binary.
	Arguments []string
}

// Key names the run in what the guest says.
func (r Run) Key() string { return r.Hash + " " + r.Name }
