// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNoTenantTakesTheThreadsOfOthers(t *testing.T) {
	d := newDialing()
	fill := func(tenant string) (count int) {
		for d.begin(tenant) {
			count++
		}
		return count
	}
	require.Equal(t, mostDialing/2, fill("first"))
	for i := range 5 {
		require.Positive(t, fill(fmt.Sprint("another ", i)), "beside %d tenants that ask only silent servers", i+1)
	}
	for d.byTenant["first"] > 0 {
		d.end("first")
	}
	require.NotContains(t, d.byTenant, "first")
	require.Positive(t, fill("first"))
}
