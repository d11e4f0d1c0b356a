// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
)

// published is what the API server has of this node, so that nothing is written
// where nothing changed.
type published struct {
	node written[v1alpha1.MPTCPNodeStatus] // publishNode's
	plan written[v1alpha1.MPTCPNodePlanStatus]
	uid  types.UID // of the plan
}

// written is a status that was written.
type written[S any] struct {
	status *S // nil where none was
	answer S  // that status as the API server has it since
	at     time.Time
}

// cacheLag is how long the agent's cache may show what was there before a write.
const cacheLag = 10 * time.Second

// stands is true where the API server has a status. seen is what it had when it was read, at
// that time: somebody may have put an older state of the cluster back from a backup.
func (w *written[S]) stands(status, seen *S, at time.Time) bool {
	if w.status == nil || !apiequality.Semantic.DeepEqual(w.status, status) {
		return false
	}
	return at.Sub(w.at) < cacheLag || apiequality.Semantic.DeepEqual(&w.answer, seen)
}
