// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"

	"braid.dev/braid/api/v1alpha1"
)

// outsideOf are the destinations outside that the winner names, sorted, where the pod uses
// paths. By which NICs traffic leaves the cluster is for ClusterMPTCPPolicies alone.
func outsideOf(winner *compiledPolicy, d *Decision) (ranges []v1alpha1.CIDR) {
	if winner.result.Policy.Kind != KindClusterPolicy || len(d.pathWeights()) == 0 {
		return nil
	}
	for _, outside := range winner.spec.Paths.Outside {
		ranges = append(ranges, outside.CIDR)
	}
	slices.Sort(ranges)
	return ranges
}
