// SPDX-License-Identifier: Apache-2.0

package product

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAttemptsAreTheTestsWithoutSubtests(t *testing.T) {
	all, failed, err := countLeaves(strings.NewReader(`
{"Action":"run","Test":"TestA"}
{"Action":"pass","Test":"TestA/one"}
{"Action":"fail","Test":"TestA/two/deep"}
{"Action":"fail","Test":"TestA/two"}
{"Action":"fail","Test":"TestA"}
{"Action":"pass","Test":"TestB"}
{"Action":"fail"}
`))
	require.NoError(t, err)
	require.Equal(t, []int{3, 1}, []int{all, failed})
	_, _, err = countLeaves(strings.NewReader(`{"Action":"fail"}`))
	require.ErrorContains(t, err, "no test")
}
