// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"

	"braid.dev/braid/api/v1alpha1"
)

// incastOf is what a pod's sockets do against incast, which the winner alone decides.
func incastOf(winner *compiledPolicy, d *Decision) *v1alpha1.Incast {
	if winner.incast == nil {
		return nil
	}
	peers := make([]string, len(winner.incast.Peers))
	for i, prefix := range winner.incast.Peers {
		peers[i] = string(prefix)
	}
	d.Incast = "gives credits to " + strings.Join(peers, " and ") + ", and heeds theirs"
	return winner.incast
}
