// SPDX-License-Identifier: Apache-2.0

package pace_test

import (
	"fmt"
	"testing"
	"time"
)

func TestEachSubflowIsPacedAtItsRate(t *testing.T) {
	for _, version := range []int{4, 6} {
		t.Run(fmt.Sprintf("IPv%d", version), func(t *testing.T) {
			l := newLab(t)
			l.allow(t, version, 4)
			l.serve(t, l.server.Address(version))
			connection := l.dial(t, l.server.Address(version))
			subflows := l.awaitSockets(t, 4)
			l.apply(t, l.endpoint())
			asked := []float64{5, 20, 50, 200}
			for i, s := range subflows {
				l.note(t, s.key(), limit{mbit: asked[i]})
			}
			l.apply(t, l.endpoint())
			send(t, connection)
			time.Sleep(500 * time.Millisecond)
			rates := l.rates(t, 5*time.Second)
			for i, s := range subflows {
				t.Logf("asked %v got %.2f", asked[i], rates[s.name()])
			}
			t.Log(sockets(t, l.client))
		})
	}
}
