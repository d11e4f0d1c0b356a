// SPDX-License-Identifier: Apache-2.0

package soak_test

import (
	"context"
	"fmt"
	"testing"

	"braid.dev/braid/hack/lab"
	"braid.dev/braid/internal/testutil"
)

// newPods is how many pods of the tenant who must not suffer begin on the crowd's node.
const newPods = 5

// timeNewPods says how long these take from their addresses being known to being programmed,
// first while the crowd is there, then with the node's agent just started.
func (s *soak) timeNewPods(t *testing.T) {
	t.Helper()
	for i := range newPods {
		testutil.Figure(t, "soak.others_pod_ms", "ms", s.timeNewPod(t, fmt.Sprint("beside-", i)))
	}
	node := s.Network.Nodes[1]
	s.Kill(t, node)
	s.Start(t, node)
	testutil.Figure(t, "soak.others_pod_after_start_ms", "ms", s.timeNewPod(t, "after-start"))
}

func (s *soak) timeNewPod(t *testing.T, name string) (milliseconds float64) {
	t.Helper()
	inside, err := s.AddPod(t.Context(), lab.Pod{Namespace: "shop", Name: name, Node: 2, Labels: app("client")})
	if err != nil {
		t.Fatal(err)
	}
	took := s.WaitFor(t, "a new pod of another tenant is programmed", patience, func(ctx context.Context) error {
		return s.PodProgrammed(ctx, "node2", "shop", name)
	})
	if err := s.RemovePod(t.Context(), "shop", inside); err != nil {
		t.Error(err)
	}
	return float64(took.Milliseconds())
}
