// SPDX-License-Identifier: Apache-2.0

package datapath

import "net/netip"

// OwnNeighbours lists the addresses of the neighbours that an agent has the kernel
// keep in the calling thread's network namespace, in no order.
func OwnNeighbours() (addresses []netip.Addr, err error) {
	known, err := listNeighbours()
	if err != nil {
		return nil, err
	}
	for neighbour, entry := range known {
		if entry.ours {
			addresses = append(addresses, neighbour.address)
		}
	}
	return addresses, nil
}
