// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
)

// governed is an endpoint that has a chain and shall have one, and whose pod is there.
type governed struct {
	chains.Attached
	// Namespace can be opened to enter the pod's network namespace.
	Namespace string
	Manager   v1alpha1.SubflowManager
}

// governedBy lists such endpoints, by their numbers. Their rules are those that packets
// run through. VMs are not among them: what is asked for here is done in a pod's own sockets.
func governedBy(c *chains.Chains, model *node.Model) (all []governed) {
	for _, attached := range c.Endpoints() {
		endpoint := model.Endpoint(attached.UID)
		if endpoint != nil && endpoint.Chain != "" && endpoint.Found != nil && !endpoint.HasGuest() {
			all = append(all, governed{attached, endpoint.Found.Path, endpoint.Subflows.Manager})
		}
	}
	return all
}
