// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/datapath"
	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/api/v1alpha1"
)

// origins are the interfaces by which the pods' packets come into the node. They are
// found beside the loop that needs them.
type origins struct {
	mu sync.Mutex
	of map[types.UID]int
}

// set tells whether something is new. A pod that is not found for a moment keeps what
// it has.
func (o *origins) set(wanted []v1alpha1.PlanEndpoint, found map[types.UID]endpoints.Endpoint) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.of
	o.of = map[types.UID]int{}
	for i := range wanted {
		uid := wanted[i].UID
		if endpoint, here := found[uid]; here {
			o.of[uid] = originOf(endpoint)
		} else if index, known := before[uid]; known {
			o.of[uid] = index
		}
	}
	return !maps.Equal(before, o.of)
}

// originOf is 0, for unknown, where a bridge or switch has the interface: packets
// seem to come from that one then, from whichever of its pods.
func originOf(endpoint endpoints.Endpoint) int {
	if endpoint.MasterIndex != 0 {
		return 0
	}
	return endpoint.HostIndex
}

// add says by which interface the endpoint's packets come in.
func (o *origins) add(to datapath.Endpoint, uid types.UID) datapath.Endpoint {
	o.mu.Lock()
	defer o.mu.Unlock()
	to.Interface = o.of[uid]
	return to
}
