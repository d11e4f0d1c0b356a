// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"testing"

	"braid.dev/braid/agent/node"
)

func TestAnAgentIsReadyWhenItsNodeIsAsPlannedAndPublished(t *testing.T) {
	var r readiness
	if err := r.check(nil); !errors.Is(err, errNotReady) {
		t.Errorf("before the first round: %v", err)
	}
	r.published(round{report: node.Report{Err: errors.New("no such program")}})
	if err := r.check(nil); !errors.Is(err, errNotReady) {
		t.Errorf("after a round that failed: %v", err)
	}
	r.published(round{})
	if err := r.check(nil); err != nil {
		t.Errorf("after a good round: %v", err)
	}
	r.published(round{report: node.Report{Err: errors.New("no such NIC")}})
	if err := r.check(nil); err != nil {
		t.Errorf("after a later failure: %v", err)
	}
}
