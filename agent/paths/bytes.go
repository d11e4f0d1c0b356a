// SPDX-License-Identifier: Apache-2.0

package paths

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// NICBytes tells what the kernel says that the NIC with this index has sent and received, and
// false where there is none.
func (n *Node) NICBytes(index int) (sent, received uint64, found bool, err error) {
	link, err := n.kernel.handle.LinkByIndex(index)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return 0, 0, false, nil
	}
	if err != nil {
		return 0, 0, false, fmt.Errorf("reading the counters of interface %d: %w", index, err)
	}
	counters := link.Attrs().Statistics
	if counters == nil {
		return 0, 0, false, nil
	}
	return counters.TxBytes, counters.RxBytes, true, nil
}
