// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/internal/testutil"
)

// What the API accepts every agent must be able to compile.
func TestEveryActionOfTheAPIHasAForm(t *testing.T) {
	require.ElementsMatch(t, testutil.ActionTypes(t), slices.Collect(maps.Keys(actionForms)))
	for action, form := range actionForms {
		require.NotZero(t, form.kind, "%s has no kind", action)
	}
}
