// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/resource"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf/endpoint"
	"braid.dev/braid/internal/testutil"
)

// What the API accepts every agent must be able to compile.
func TestEveryActionOfTheAPIHasAForm(t *testing.T) {
	require.ElementsMatch(t, testutil.ActionTypes(t), slices.Collect(maps.Keys(actionForms)))
	for action, form := range actionForms {
		require.NotZero(t, form.kind, "%s has no kind", action)
	}
}

// Packets have nothing to keep then: the program at the sockets is told which rule holds.
func TestAnActionAtThePeerIsForTheStackAlone(t *testing.T) {
	rule := v1alpha1.PlanRule{Policy: "MPTCPPolicy/team/web", Rule: v1alpha1.Rule{Name: "ask", Actions: []v1alpha1.Action{
		{Type: v1alpha1.ActionRateLimit, At: v1alpha1.ActionAtPeer, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("20M")}},
		{Type: v1alpha1.ActionRateLimit, RateLimit: &v1alpha1.RateLimit{Rate: resource.MustParse("30M")}},
	}}}
	c := &compiler{limits: map[uint32]bool{}}
	var compiled Rule
	asked, err := c.action(&rule, 0, &compiled)
	require.NoError(t, err)
	require.Equal(t, Action{Kind: endpoint.ActionStack}, asked)
	kept, err := c.action(&rule, 1, &compiled)
	require.NoError(t, err)
	require.EqualValues(t, endpoint.ActionRateLimit, kept.Kind)
	require.NotZero(t, kept.Rate)
}
