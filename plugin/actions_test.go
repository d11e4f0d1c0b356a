// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"testing"

	"braid.dev/braid/api/v1alpha1"
)

func TestAnActionAtThePeerIsToldAsOne(t *testing.T) {
	list := []v1alpha1.Action{{Type: v1alpha1.ActionRateLimit, At: v1alpha1.ActionAtPeer}, {Type: v1alpha1.ActionRecord, At: v1alpha1.ActionAtEndpoint}}
	if got := actions(list); got != "RateLimit at the peer, Record" {
		t.Errorf("the actions are told as %q", got)
	}
}
