// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// blackholeTimeout is how long, in seconds, the kernel opens plain TCP connections alone in a
// namespace after one whose MPTCP SYNs were lost and whose plain one was not; when that
// happens again right after, it doubles. The kernel's own is an hour. But a NetworkPolicy that
// is lifted or comes late, as those of new pods do, looks the same as a middlebox.
const blackholeTimeout = 60

// shortenBlackholes sets it where it is longer. Writing it ends such a time. The caller
// holds changes, and the record is there.
func (n *Namespace) shortenBlackholes() error {
	if _, known := n.record.Sysctls[settingBlackholes]; !known {
		before, err := n.sysctls.read(settingBlackholes)
		if errors.Is(err, os.ErrNotExist) {
			return nil // before Linux 6.12 nothing is given up
		}
		if err != nil {
			return err
		}
		// 0 means that nothing is.
		if seconds, err := strconv.Atoi(before); err != nil || seconds <= blackholeTimeout {
			return err
		}
		n.record.Sysctls[settingBlackholes] = before
		if err := n.record.write(n.options.StatePath); err != nil {
			return err
		}
	}
	if err := n.sysctls.set(settingBlackholes, strconv.Itoa(blackholeTimeout)); err != nil {
		return fmt.Errorf("shortening the time without MPTCP: %w", err)
	}
	return nil
}
