// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestAListThatChangesWhileItIsReadIsReadAgain(t *testing.T) {
	for name, test := range map[string]struct {
		interrupted int
		failure     error
		reads       int
		ok          bool
	}{
		"at rest":              {0, nil, 1, true},
		"changing for a while": {3, nil, 4, true},
		"changing for ever":    {1000, nil, dumpAttempts, false},
		"not readable":         {0, unix.EPERM, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			reads := 0
			items, err := dump("things", func() ([]int, error) {
				reads++
				if reads <= test.interrupted {
					return []int{1}, netlink.ErrDumpInterrupted
				}
				return []int{1, 2}, test.failure
			})
			if reads != test.reads || (err == nil) != test.ok || test.ok && len(items) != 2 || !test.ok && items != nil {
				t.Errorf("%d reads gave %v, %v", reads, items, err)
			}
			if test.failure != nil && !errors.Is(err, test.failure) {
				t.Errorf("the reason is lost: %v", err)
			}
		})
	}
}
