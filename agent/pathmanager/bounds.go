// SPDX-License-Identifier: Apache-2.0

package pathmanager

import (
	"errors"
	"fmt"
	"os"
	"strconv"
)

// boundedSetting is one of a namespace that is changed where its value is beyond another one.
type boundedSetting struct {
	name  string
	value int
	// beyond says whether what the namespace has is to be changed.
	beyond func(before int) bool
	// to completes "failed to …".
	to string
}

const (
	// blackholeTimeout is how long, in seconds, the kernel opens plain TCP connections alone in a
	// namespace after one whose MPTCP SYNs were lost and whose plain one was not; when that
	// happens again right after, it doubles. The kernel's own is an hour. But a NetworkPolicy that
	// is lifted or comes late, as those of new pods do, looks the same as a middlebox. 0 means
	// that nothing is given up. Writing it ends such a time.
	blackholeTimeout = 60
	// leastMTU is what IPv6 has always. The kernel believes an ICMP error that a packet was too
	// large where the sequence number is one of those in flight, which who knows addresses and ports
	// can guess (RFC 5927), for ten minutes. Its own bound for IPv4 is 552. Where the path takes
	// less indeed, the kernel sends packets of this size that routers may fragment.
	leastMTU = 1280
)

var boundedSettings = []boundedSetting{
	{settingBlackholes, blackholeTimeout, func(before int) bool { return before > blackholeTimeout }, "shorten the time without MPTCP"},
	{settingLeastMTU, leastMTU, func(before int) bool { return before < leastMTU }, "keep forged ICMP errors from making packets small"},
}

// keep changes the setting where it is beyond the bound. The caller holds changes, and the
// record is there.
func (n *Namespace) keep(b boundedSetting) error {
	if _, known := n.record.Sysctls[b.name]; !known {
		before, err := n.sysctls.read(b.name)
		if errors.Is(err, os.ErrNotExist) {
			return nil // an older kernel
		}
		if err != nil {
			return err
		}
		number, err := strconv.Atoi(before)
		if err != nil {
			return fmt.Errorf("reading setting %s: %w", b.name, err)
		}
		if !b.beyond(number) {
			return nil
		}
		n.record.Sysctls[b.name] = before
		if err := n.record.write(n.options.StatePath); err != nil {
			return err
		}
	}
	if err := n.sysctls.set(b.name, strconv.Itoa(b.value)); err != nil {
		return fmt.Errorf("failed to %s: %w", b.to, err)
	}
	return nil
}
