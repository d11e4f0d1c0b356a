// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestACounterIsFoundByItsName(t *testing.T) {
	for name, test := range map[string]struct {
		statistics string
		is         bool
	}{
		"above zero":       {"TcpExt: A TCPFastOpenActive B\nTcpExt: 0 12 0\n", true},
		"zero":             {"TcpExt: A TCPFastOpenActive B\nTcpExt: 3 0 7\n", false},
		"of another kind":  {"IpExt: A TCPFastOpenActive\nIpExt: 0 12\n", false},
		"not there":        {"TcpExt: A B\nTcpExt: 1 2\n", false},
		"without a number": {"TcpExt: A B TCPFastOpenActive\nTcpExt: 1 2\n", false},
		"nothing":          {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.is, counted(test.statistics, "TcpExt:", "TCPFastOpenActive"))
		})
	}
}
