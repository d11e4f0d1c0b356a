// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/asking"
	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/pace"
)

// AskedBy tells what the rules of a VM ask of the peers of its subflows, by the records of
// packets: a pod's sockets find that by themselves.
func (r *Rules) AskedBy(of types.UID) asking.Rules { return askedBy(r.chains, of) }

func askedBy(c *chains.Chains, of types.UID) asking.Rules {
	for _, attached := range c.Endpoints() {
		if attached.UID != of {
			continue
		}
		return func(local, remote netip.AddrPort) (asked pace.Request, err error) {
			record, err := c.Subflow(attached.Number, local, remote)
			if err != nil || record == nil {
				return asked, err
			}
			return pace.Asked(attached.Rules, record.Sure[0]|record.Sure[1]|record.Stack), nil
		}
	}
	return nil
}
