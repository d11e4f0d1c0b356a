// SPDX-License-Identifier: Apache-2.0

package endpoints_test

import (
	"fmt"
	"testing"
)

// BenchmarkLook is what a look costs that an agent makes again and again, at a node with
// so many pods: when nothing changed, and when it sees all for the first time.
func BenchmarkLook(b *testing.B) {
	for _, pods := range []int{10, 50} {
		l := newLab(b, pods)
		b.Run(fmt.Sprintf("again/%d", pods), func(b *testing.B) {
			for b.Loop() {
				l.look()
			}
		})
		b.Run(fmt.Sprintf("first/%d", pods), func(b *testing.B) {
			for b.Loop() {
				l.restart()
				l.look()
			}
		})
	}
}
