// SPDX-License-Identifier: Apache-2.0

package attach

import (
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
)

// On some NICs the program would not see to which VLAN a frame belongs, and where a NIC is
// one of several the program would not know by which of them it runs.
func TestANICWithVLANsAndOneOfSeveralAreNotSuited(t *testing.T) {
	all := []netlink.Link{
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth0", Index: 2}},
		&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "eth1", Index: 3}},
		&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: "eth1.5", Index: 4, ParentIndex: 3}},
		&netlink.Bond{LinkAttrs: netlink.LinkAttrs{Name: "bond0", Index: 5}},
		&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: "macvlan0", Index: 6, ParentIndex: 2}},
	}
	require.NoError(t, suits(2, all))
	require.ErrorIs(t, suits(3, all), ErrUnsupported)
	require.ErrorContains(t, suits(3, all), "VLANs (eth1.5)")
	require.ErrorContains(t, suits(5, all), "a program of a bond runs at its NICs")
}
