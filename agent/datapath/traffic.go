// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"fmt"
	"sync"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/node"
	"braid.dev/braid/bpf/uplink"
)

// noPath is the label of NICs that belong to no path.
const noPath = "none"

// counters reads what the programs count of each account on each path
// (bpf/include/uplink/traffic.h). It is safe for concurrent use.
type counters struct {
	mu       sync.Mutex
	values   *ebpf.Map // nil while nothing is loaded
	accounts []node.Account
	paths    pathNumbers
}

func (c *counters) use(values *ebpf.Map) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.values, c.accounts, c.paths = values, nil, nil
}

// show says which accounts and paths there are.
func (c *counters) show(accounts []node.Account, paths pathNumbers) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accounts, c.paths = accounts, paths
}

// each visits the accounts on all paths of the node.
func (c *counters) each(visit func(path string, account node.Account, counted uplink.ToUplinkTraffic)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.values == nil {
		return nil
	}
	for _, account := range c.accounts {
		for path, number := range c.paths {
			counted, err := c.read(indexOf(account.Number, uint32(number)))
			if err != nil {
				return err
			}
			visit(path, account, counted)
		}
		counted, err := c.read(uplink.TrafficOfNoPath + account.Number)
		if err != nil {
			return err
		}
		if counted != (uplink.ToUplinkTraffic{}) {
			visit(noPath, account, counted)
		}
	}
	return nil
}

// indexOf is traffic_of of the programs.
func indexOf(account, path uint32) uint32 { return account*uplink.MaxPaths + path }

// read adds up what all processors counted.
func (c *counters) read(index uint32) (total uplink.ToUplinkTraffic, err error) {
	var each []uplink.ToUplinkTraffic
	if err := c.values.Lookup(index, &each); err != nil {
		return total, fmt.Errorf("reading the traffic counter %d: %w", index, err)
	}
	for i := range each {
		total.SentBytes += each[i].SentBytes
		total.SentPackets += each[i].SentPackets
		total.ReceivedBytes += each[i].ReceivedBytes
		total.ReceivedPackets += each[i].ReceivedPackets
	}
	return total, nil
}

// clear forgets what was counted of paths and accounts that are gone: others get their
// numbers.
func (c *counters) clear(paths, accounts map[uint32]bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var gone []uint32
	for path := range paths {
		for account := range uint32(uplink.MaxAccounts) {
			gone = append(gone, indexOf(account, path))
		}
	}
	for account := range accounts {
		for path := range uint32(uplink.MaxPaths) {
			gone = append(gone, indexOf(account, path))
		}
		gone = append(gone, uplink.TrafficOfNoPath+account)
	}
	zero := make([]uplink.ToUplinkTraffic, ebpf.MustPossibleCPU())
	for _, index := range gone {
		if err := c.values.Put(index, zero); err != nil {
			return fmt.Errorf("clearing the traffic counter %d: %w", index, err)
		}
	}
	return nil
}
