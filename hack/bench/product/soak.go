// SPDX-License-Identifier: Apache-2.0

package product

import (
	"cmp"
	"context"
	"os"

	"braid.dev/braid/hack/bench/rig"
)

// soakVariable says for how long measureSoak goes on.
const soakVariable = "BRAID_SOAK"

// measureSoak runs once, whatever the number of trials.
func measureSoak(ctx context.Context, m *rig.Measurement, _ rig.Nothing) error {
	duration := cmp.Or(os.Getenv(soakVariable), "30m")
	return runTest(ctx, m, "./e2e/soak", "TestNothingIsLeftAfterPodsThatDieFloodsAndRestarts", soakVariable+"="+duration)
}
