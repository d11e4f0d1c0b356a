// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
)

// The programs' records, and their keys.
type (
	// SubflowKey names a subflow; numbers are in network byte order.
	SubflowKey = endpoint.FromEndpointSubflowKey
	// SubflowRecord is what the programs know of a subflow.
	SubflowRecord = endpoint.FromEndpointSubflow
)

// Subflow is a subflow that the programs remember.
type Subflow struct {
	UID    types.UID // of the endpoint
	Key    SubflowKey
	Record SubflowRecord
}

// Subflows lists the subflows of endpoints, in no order.
func (c *Chains) Subflows() (subflows []Subflow, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.loaded.Is() {
		return nil, nil
	}
	uids := map[uint32]types.UID{}
	for uid, a := range c.loaded.Value.endpoints {
		uids[a.record.Number] = uid
	}
	err = c.loaded.Value.eachSubflow(func(key *SubflowKey, record *SubflowRecord) {
		if uid, known := uids[key.Endpoint]; known {
			subflows = append(subflows, Subflow{uid, *key, *record})
		}
	})
	return subflows, err
}

// Subflow is the record of one subflow of the endpoint with this number; nil when
// there is none.
func (c *Chains) Subflow(number uint32, local, remote netip.AddrPort) (*SubflowRecord, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.loaded.Is() {
		return nil, nil
	}
	key := SubflowKey{Endpoint: number, LocalPort: bpf.Port(local.Port()), RemotePort: bpf.Port(remote.Port())}
	key.Local.Word, key.Remote.Word = bpf.Words(local.Addr()), bpf.Words(remote.Addr())
	var record SubflowRecord
	err := c.loaded.Value.maps["subflows"].Lookup(key, &record)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a subflow: %w", err)
	}
	return &record, c.loaded.Value.complete(&key, &record)
}

// RuleUse is what one rule of an endpoint did since it is there.
type RuleUse struct {
	Policy, Name string
	RuleCounters
}

// Counters are those of the rules of an endpoint, in their order; none for an
// endpoint without a chain, or whose chain is that of an earlier agent.
func (c *Chains) Counters(uid types.UID) (uses []RuleUse, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.loaded.Is() || c.loaded.Value.endpoints[uid] == nil {
		return nil, nil
	}
	a := c.loaded.Value.endpoints[uid]
	counters, err := c.loaded.Value.counters.at(int(a.word.Row()))
	if err != nil {
		return nil, err
	}
	counted := counters.read()
	for i := range a.rules {
		uses = append(uses, RuleUse{a.rules[i].Policy, a.rules[i].Name, counted[i]})
	}
	return uses, nil
}

func (o *objects) eachSubflow(visit func(*SubflowKey, *SubflowRecord)) error {
	var failed error
	err := entries.Each(o.maps["subflows"], func(key *SubflowKey, record *SubflowRecord) {
		failed = errors.Join(failed, o.complete(key, record))
		visit(key, record)
	})
	return errors.Join(err, failed)
}

// complete adds what the programs keep beside a record.
func (o *objects) complete(key *SubflowKey, record *SubflowRecord) error {
	steady, err := o.steady.at(int(endpoint.SteadySlot(key)))
	if err == nil {
		steady.Complete(key, record)
	}
	return err
}

// engaged are the endpoints, by number, with subflows on which rules have lasting
// effects.
func (o *objects) engaged() (map[uint32]bool, error) {
	numbers := map[uint32]bool{}
	err := o.eachSubflow(func(key *SubflowKey, record *SubflowRecord) {
		if record.Engaged != 0 && record.Ended == 0 && !isAttempt(record) {
			numbers[key.Endpoint] = true
		}
	})
	return numbers, err
}

// isAttempt is true for a subflow of which nothing but SYNs passed: neither end keeps
// anything that was done to it. Somebody who floods a pod with SYNs would hold its
// programs for the time of patience else.
func isAttempt(record *SubflowRecord) bool {
	switch record.Known & (endpoint.KnownSYN | endpoint.KnownSYNACK) {
	case endpoint.KnownSYN:
		return true
	case endpoint.KnownSYNACK:
		return isOneWay(record)
	case endpoint.KnownSYN | endpoint.KnownSYNACK:
		return !hasGoneOn(record, 0) && !hasGoneOn(record, 1)
	}
	return false
}

// hasGoneOn: there was more than a SYN in this direction.
func hasGoneOn(record *SubflowRecord, direction int) bool {
	return record.Traffic[direction].Packets > 1 || record.Traffic[direction].Bytes > 0
}

// isOneWay: the other end never said anything.
func isOneWay(record *SubflowRecord) bool {
	return record.Traffic[0].Begun == 0 || record.Traffic[1].Begun == 0
}
