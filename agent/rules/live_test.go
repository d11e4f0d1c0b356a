// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSubflowsAreShownWithRulesAndWithoutThem has a pod talk that gets rules and
// loses them.
func TestSubflowsAreShownWithRulesAndWithoutThem(t *testing.T) {
	l := newRuleLab(t)
	for _, hasRules := range []bool{false, true, false} {
		plan := planOf()
		if hasRules {
			plan = planOf(planRule("record", recordAll))
		}
		l.applyAll(t, plan)
		done := make(chan struct{})
		go func() { defer close(done); l.transfer(t) }()
		for deadline := time.Now().Add(20 * time.Second); !l.shows(t, hasRules); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("with rules %t: the pod's subflow is not shown", hasRules)
				break
			}
			select {
			case <-done: // too soon for a busy machine: once more
				done = make(chan struct{})
				go func() { defer close(done); l.transfer(t) }()
			default:
			}
		}
		<-done
	}
}

// shows finds a subflow of the pod that has sent something; what chains recorded
// counts packets too.
func (l *ruleLab) shows(t *testing.T, recorded bool) bool {
	t.Helper()
	subflows, err := l.rules.inspection.node.Subflows()
	require.NoError(t, err)
	for _, s := range subflows {
		if s.Endpoint == "team/client" && s.Sent.Bytes > 0 && (s.Sent.Packets > 0) == recorded {
			return true
		}
	}
	return false
}
