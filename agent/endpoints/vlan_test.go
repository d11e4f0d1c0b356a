// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

func TestWhatIsRoutedToAVLANLeavesByTheInterfaceBelow(t *testing.T) {
	link := func(index, parent, namespace int) netlink.LinkAttrs {
		return netlink.LinkAttrs{Index: index, ParentIndex: parent, NetNsID: namespace}
	}
	l := &links{all: []netlink.Link{
		&netlink.Tuntap{LinkAttrs: link(1, 0, -1)}, &netlink.Vlan{LinkAttrs: link(2, 1, -1)}, &netlink.Vlan{LinkAttrs: link(3, 2, -1)},
		&netlink.Vlan{LinkAttrs: link(4, 3, -1)},
		&netlink.Vlan{LinkAttrs: link(5, 1, 7)}, // on an interface of another namespace, which has that index there
		&netlink.Macvlan{LinkAttrs: link(6, 1, -1)},
	}}
	for index, want := range map[int][]int{1: {1}, 2: {2, 1}, 3: {3, 2, 1}, 4: {4, 3, 2}, 5: {5}, 6: {6}, 9: {9}} {
		require.Equal(t, want, l.beneath(index), "of interface %d", index)
	}
}
