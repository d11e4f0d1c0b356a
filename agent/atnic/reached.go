// SPDX-License-Identifier: Apache-2.0

package atnic

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"

	"braid.dev/braid/agent/chains"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
)

// reachedOf are the addresses of endpoints whose rules may drop what comes in, and where they
// lead. What other endpoints receive is not looked at any further.
func reachedOf(model *node.Model, attached []chains.Attached) map[endpoint.AtNICAddress]endpoint.AtNICReached {
	reached := map[endpoint.AtNICAddress]endpoint.AtNICReached{}
	for i := range attached {
		has := &attached[i]
		of := model.Endpoint(has.UID)
		if of == nil || of.Found == nil || of.Contradiction != nil || len(of.Others) > 0 || !slices.ContainsFunc(has.Rules, mayDrop) {
			continue
		}
		to := endpoint.AtNICReached{Interface: uint32(has.Interface), Device: uint32(deviceOf(of))}
		for _, address := range of.Addresses {
			reached[addressOf(address)] = to
		}
	}
	return reached
}

// mayDrop: a rule whose first action is another one is the endpoint's program's.
func mayDrop(rule v1alpha1.PlanRule) bool {
	return len(rule.Actions) > 0 && rule.Actions[0].Type == v1alpha1.ActionDrop
}

// deviceOf is the interface to which the node's routes to an endpoint lead.
func deviceOf(of *node.Endpoint) int {
	return cmp.Or(of.Found.RoutedBy, of.Found.MasterIndex, of.HostInterface)
}

func addressOf(address netip.Addr) (key endpoint.AtNICAddress) {
	bytes := address.As16()
	for i := range key.Word {
		key.Word[i] = binary.NativeEndian.Uint32(bytes[i*4:])
	}
	return key
}
