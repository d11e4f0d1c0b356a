// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/internal/testutil"
)

func TestEveryActionOfTheAPIIsKnown(t *testing.T) {
	require.ElementsMatch(t, testutil.ActionTypes(t), slices.Collect(maps.Keys(actionRules)))
}

// Without the parameters that it needs no action gets into a plan.
func TestWhatAnActionNeedsIsAskedFor(t *testing.T) {
	for action, rule := range actionRules {
		require.Equal(t, rule.parameter, missingParameter(&v1alpha1.Action{Type: action}), "%s", action)
		require.Equal(t, rule.parameter != "", rule.lacks != nil, "%s", action)
		require.Equal(t, rule.excludes != "", rule.why != "", "%s", action)
	}
}

func TestEveryActionIsDocumented(t *testing.T) {
	document, err := os.ReadFile("../docs/rules.md")
	require.NoError(t, err)
	for _, action := range testutil.ActionTypes(t) {
		row := regexp.MustCompile("(?m)^\\| [^|]*`" + string(action) + "`")
		require.True(t, row.Match(document), "the table in docs/rules.md has no row for %s", action)
	}
}
