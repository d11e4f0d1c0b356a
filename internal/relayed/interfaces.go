// SPDX-License-Identifier: Apache-2.0

package relayed

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// InterfacePrefix is how the node's ends of relays' interfaces begin; the index of the
// client's interface follows.
const InterfacePrefix = "brelay"

// Dead lists relays' interfaces on which no program is: a proxy that was killed leaves them
// for as long as its sockets wait for answers, a minute at most. So does for a moment one
// that is being made. living counts the others.
func Dead() (dead []netlink.Link, living int, err error) {
	devices, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, 0, fmt.Errorf("listing interfaces: %w", err)
	}
	for _, device := range devices {
		if !strings.HasPrefix(device.Attrs().Name, InterfacePrefix) {
			continue
		}
		query, err := link.QueryPrograms(link.QueryOptions{Target: device.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err == nil && len(query.Programs) == 0 {
			dead = append(dead, device)
		} else {
			living++
		}
	}
	return dead, living, nil
}

// Sweep removes interfaces; it is no error where they are gone.
func Sweep(interfaces []netlink.Link) (failed error) {
	for _, device := range interfaces {
		var gone netlink.LinkNotFoundError
		if _, err := netlink.LinkByIndex(device.Attrs().Index); errors.As(err, &gone) {
			continue
		}
		if err := netlink.LinkDel(device); err != nil {
			failed = errors.Join(failed, fmt.Errorf("removing interface %s: %w", device.Attrs().Name, err))
		}
	}
	return failed
}
