// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"braid.dev/braid/api/v1alpha1"
)

const somePlans = `{"kind":"MPTCPNodePlanList","items":[{"metadata":{"name":"node1"},"spec":{"endpoints":[{"name":"web"}]}},{"metadata":{"name":"node2"}}],` +
	`"metadata":{"resourceVersion":"7"},"apiVersion":"braid.dev/v1alpha1"}`

func TestAListIsReadObjectByObject(t *testing.T) {
	var plans v1alpha1.MPTCPNodePlanList
	require.NoError(t, decodeList(strings.NewReader(somePlans), &plans))
	require.Equal(t, "7", plans.ResourceVersion)
	require.Len(t, plans.Items, 2)
	require.Equal(t, "web", plans.Items[0].Spec.Endpoints[0].Name)
	require.Equal(t, "node2", plans.Items[1].Name)

	for _, none := range []string{`{"items":[]}`, `{"metadata":{}}`} {
		var plans v1alpha1.MPTCPNodePlanList
		require.NoError(t, decodeList(strings.NewReader(none), &plans), none)
		require.Empty(t, plans.Items)
	}
}

// A connection that breaks must not make a cluster look smaller than it is.
func TestAListWithoutItsEndIsAnError(t *testing.T) {
	for end := range len(somePlans) {
		var plans v1alpha1.MPTCPNodePlanList
		require.Error(t, decodeList(strings.NewReader(somePlans[:end]), &plans), somePlans[:end])
	}
	for _, other := range []string{`[]`, `{"items":{}}`, `{"items":[7]}`, `{"items":null}`, `null`, `<html>`} {
		var plans v1alpha1.MPTCPNodePlanList
		require.Error(t, decodeList(strings.NewReader(other), &plans), other)
	}
}
