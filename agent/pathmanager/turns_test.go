// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNamespacesLookForDriftOneAtATimeAndForAPartOfTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var drift turns
		const took = time.Second
		refused := func() { t.Error("it looks, and it is not its turn") }
		wait := drift.take(func() {
			require.Equal(t, turnWait, drift.take(refused), "while another one looks")
			time.Sleep(took)
		})
		require.Equal(t, resync, wait, "after it has looked")
		require.Equal(t, lookPause*took, drift.take(refused), "after a look that took long")
		time.Sleep(lookPause * took)
		looked := false
		drift.take(func() { looked = true })
		require.True(t, looked, "after the pause nobody looked")
		looked = false
		drift.take(func() { looked = true })
		require.True(t, looked, "a look that took no time kept others from theirs")
	})
}
