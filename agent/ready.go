// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"errors"
	"sync/atomic"
)

// readiness of an agent is reached once and kept: without the API server, or with
// a NIC that fails later, it goes on as well as it can, and to replace no further
// agents because of that would help nobody.
type readiness struct{ reached atomic.Bool }

var errNotReady = errors.New("the node was not yet as its plan says, or the other nodes do not know of it yet")

// published notes that the others know of the node as it was in a round.
func (r *readiness) published(of round) {
	if of.report.Err == nil {
		r.reached.Store(true)
	}
}

// check is nil for an agent that is ready, and else why it is not: server says what is
// wrong with the API server, if anything is.
func (r *readiness) check(server error) error {
	if r.reached.Load() {
		return nil
	}
	return cmp.Or(server, errNotReady)
}
