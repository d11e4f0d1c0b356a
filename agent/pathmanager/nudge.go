// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"net/netip"
	"slices"

	"braid.dev/braid/internal/mptcpnl"
)

var (
	anyIPv4 = anywhere(netip.IPv4Unspecified())
	anyIPv6 = anywhere(netip.IPv6Unspecified())
)

// nudge makes the kernel's path manager open one subflow on each connection of
// the endpoint's IP version that is below its limit, and leaves the others alone.
// An endpoint that is there for good is removed and added again, because the
// kernel uses each but once.
func (n *Namespace) nudge(endpoint mptcpnl.Endpoint) error {
	n.changes.Lock()
	defer n.changes.Unlock()
	before, err := n.remove(endpoint)
	if err != nil {
		return err
	}
	if err := n.client.AddEndpoint(endpoint); err != nil {
		return err
	}
	if before {
		return nil
	}
	_, err = n.remove(endpoint)
	return err
}

// remove removes such an endpoint and says whether there was one.
func (n *Namespace) remove(endpoint mptcpnl.Endpoint) (bool, error) {
	present, err := n.client.Endpoints()
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(present, endpointLike(endpoint))
	if at < 0 {
		return false, nil
	}
	return true, n.client.DeleteEndpoint(present[at].ID)
}

// reapply mends what somebody changed, and announces once a socket listens.
func (n *Namespace) reapply() error {
	n.changes.Lock()
	defer n.changes.Unlock()
	return n.apply()
}
