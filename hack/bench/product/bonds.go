// SPDX-License-Identifier: Apache-2.0

package product

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"braid.dev/braid/hack/bench/baseline"
	"braid.dev/braid/internal/lab/network"
)

// bonds are those of the nodes that two pods are on, for what these send to each other.
type bonds []*baseline.Bond

// Close takes them away.
func (b bonds) Close() (failed error) {
	for _, one := range b {
		failed = errors.Join(failed, one.Close())
	}
	return failed
}

// bondsOf makes bonds of the first two nodes' NICs, or none.
func (w *web) bondsOf(mode baseline.BondMode) func(context.Context) (bonds, error) {
	return func(context.Context) (made bonds, _ error) {
		if mode == "" {
			return nil, nil
		}
		nodes := w.Network.Nodes
		for i, node := range nodes[:2] {
			bond, err := bondOf(mode, w.Network.Spec.Paths, node, nodes[1-i])
			if err != nil {
				return nil, errors.Join(fmt.Errorf("bonding the NICs of %s: %w", node.NodeName(), err), made.Close())
			}
			made = append(made, bond)
		}
		return made, nil
	}
}

// bondOf divides what a node sends to the pods of a peer, which leaves by the first path's NIC.
func bondOf(mode baseline.BondMode, paths []string, node, peer *network.Node) (bond *baseline.Bond, err error) {
	var slaves []baseline.Slave
	for i, path := range paths {
		index, err := node.Index(path)
		if err != nil {
			return nil, err
		}
		next, err := netip.ParseAddr(peer.Address(i, 4))
		if err != nil {
			return nil, fmt.Errorf("reading the peer's address: %w", err)
		}
		slaves = append(slaves, baseline.Slave{Interface: index, NextHop: next})
	}
	pods, err := netip.ParsePrefix(peer.PodCIDR(4))
	if err != nil {
		return nil, fmt.Errorf("reading the peer's range of pods: %w", err)
	}
	err = node.Do(func() (err error) {
		bond, err = baseline.NewBond(mode, slaves[0].Interface, slaves, pods)
		return err
	})
	return bond, err
}
