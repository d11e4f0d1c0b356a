// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
)

// trunk is the path whose NIC a path runs over: its own, or that of the first one of
// those with which it shares.
func (spec *Spec) trunk(path string) string {
	for _, group := range spec.Shared {
		if slices.Contains(group, path) {
			return group[0]
		}
	}
	return path
}

func (spec *Spec) checkShared() error {
	seen := map[string]bool{}
	for _, group := range spec.Shared {
		for i, path := range group {
			index := slices.Index(spec.Paths, path)
			if seen[path] || index < 0 || spec.PathDelays[path] != 0 || index < slices.Index(spec.Paths, group[0]) || len(group) < 2 && i == 0 {
				return fmt.Errorf("network %s: paths %v cannot share NICs: each must be another path without a delay, and the first of them come first", spec.Name, group)
			}
			seen[path] = true
		}
	}
	return nil
}

// share adds a path's interface on top of another path's NIC.
func (node *Node) share(path, trunk string, addresses []string) error {
	handle, below, err := node.link(trunk)
	if err != nil {
		return err
	}
	attributes := netlink.NewLinkAttrs()
	attributes.Name, attributes.ParentIndex = path, below.Attrs().Index
	if err := handle.LinkAdd(&netlink.Macvlan{LinkAttrs: attributes, Mode: netlink.MACVLAN_MODE_PRIVATE}); err != nil {
		return fmt.Errorf("adding %s on top of %s: %w", path, trunk, err)
	}
	for _, address := range addresses {
		if err := node.AddAddress(path, address); err != nil {
			return err
		}
	}
	if err := node.SetUp(path); err != nil {
		return err
	}
	return node.waitForIPv6(path)
}
