// SPDX-License-Identifier: Apache-2.0

package mptcpnl

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKernelsTellOfBacklogsFrom65On(t *testing.T) {
	for version, tells := range map[[3]uint32]bool{
		{5, 15, 0}: false, {6, 1, 50}: false, {6, 4, 9}: false, {6, 5, 0}: true, {6, 18, 5}: true, {7, 3, 0}: true,
	} {
		require.Equal(t, tells, tellsOfBacklogs(version[0]<<16|version[1]<<8|version[2]), version)
	}
}
