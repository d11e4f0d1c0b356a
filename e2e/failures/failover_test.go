// SPDX-License-Identifier: Apache-2.0

package failures_test

import (
	"testing"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/e2e/shop"
)

// failures are those of the path that the cluster network's routes use, and of
// another one.
func failures() (all []shop.Failure) {
	for _, path := range paths[:2] {
		for _, node := range []string{"client", "server"} {
			all = append(all,
				shop.LosesCarrier(path, node),
				shop.IsSetDown(path, node))
		}
	}
	return all
}

// Both versions of IP and both directions at once, each byte compared. What takes
// most of a minute, to find out that an agent is silent, goes on beside the failures
// that fit into it.
func TestANICGoesDownAndComesBack(t *testing.T) {
	c := use(t)
	c.Spread(t, shop.Policy(v1alpha1.SubflowManagerAgent), 2)
	quiet := c.silence(t)
	all := failures()
	expect := func(from, to int) {
		for i := from; i < to; i++ {
			t.Run(all[i].String(), func(t *testing.T) { c.ExpectFailover(t, all[i], i%2 == 0) })
		}
	}
	const withinAMinute = 6
	expect(0, withinAMinute)
	t.Run("a silent agent shows within a minute", func(t *testing.T) { c.expectSilence(t, quiet) })
	expect(withinAMinute, len(all))
}
