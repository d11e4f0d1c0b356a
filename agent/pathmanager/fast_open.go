// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"braid.dev/braid/agent/endpoints/namespace"
)

// Connections that began with data in their SYN (TCP Fast Open, RFC 7413) would crawl with several subflows: the
// kernel's sender goes far beyond their windows then (docs/kernel-notes.md).

// leaveFastOpen has a connection stay with its first subflow that began so. The kernel is asked once.
func (f *follower) leaveFastOpen(c *connection) error {
	if c.asked {
		return nil
	}
	first, there, err := f.namespace.diagnostics.Subflow(c.local, c.remote)
	if err != nil {
		return fmt.Errorf("asking how a connection began: %w", err)
	}
	c.asked = true
	if there && first.TCP.BeganWithData {
		c.complete = true
		f.tracker.refresh(c)
	}
	return nil
}

// mayNotNudge is true where the kernel is not to open subflows for this: it would of every connection, also of those
// that began so, of which its events do not tell.
func (f *follower) mayNotNudge() (bool, error) {
	if f.tracker.mayNotHelp() {
		return true, nil
	}
	return usesFastOpen(f.namespace.file)
}

// usesFastOpen tells whether any socket of a network namespace had data in its SYN, and the peer took it.
func usesFastOpen(of *os.File) (uses bool, err error) {
	err = namespace.Do(of, func() error {
		statistics, err := os.ReadFile("/proc/thread-self/net/netstat")
		uses = counted(string(statistics), "TcpExt:", "TCPFastOpenActive")
		return err
	})
	if err != nil {
		return false, fmt.Errorf("reading a pod's counters of TCP: %w", err)
	}
	return uses, nil
}

// counted tells whether a counter is above zero: those of a kind have a line of names, and then one of numbers.
func counted(statistics, kind, name string) bool {
	var names []string
	for line := range strings.Lines(statistics) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != kind {
			continue
		}
		if at := slices.Index(names, name); at >= 0 && at < len(fields) {
			return fields[at] != "0"
		}
		names = fields
	}
	return false
}
