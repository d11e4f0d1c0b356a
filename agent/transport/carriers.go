// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"fmt"
	"net/netip"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/pathmanager/conntrack"
)

// Flows are those that the uplinks remember.
type Flows interface {
	// Find returns the flow with these ends; nil where there is none.
	Find(local, remote netip.AddrPort) (*datapath.Flow, error)
	Close() error
}

// Carriers tells by which path subflows leave. The zero value works; it is not safe for
// concurrent use.
type Carriers struct{ tracked *conntrack.Table }

// Of is the path of a subflow's packets; empty where it is not known. A connection to a
// Service has another address in the flows.
func (c *Carriers) Of(flows Flows, local, remote netip.AddrPort) string {
	flow, err := flows.Find(local, remote)
	if err == nil && flow == nil && c.track() {
		if backend, ok, err := c.tracked.Destination(local, remote); err == nil && ok {
			flow, _ = flows.Find(local, backend)
		}
	}
	if flow == nil {
		return ""
	}
	return flow.Carrier()
}

// track opens connection tracking when it is asked first.
func (c *Carriers) track() bool {
	if c.tracked == nil {
		tracked, err := conntrack.Dial(0)
		if err != nil {
			return false
		}
		c.tracked = tracked
	}
	return true
}

// Close lets go of connection tracking.
func (c *Carriers) Close() error {
	if c.tracked == nil {
		return nil
	}
	if err := c.tracked.Close(); err != nil {
		return fmt.Errorf("closing connection tracking: %w", err)
	}
	return nil
}
