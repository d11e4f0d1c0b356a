// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/api/v1alpha1"
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
	if c.objects == nil {
		return nil, nil
	}
	uids := map[uint32]types.UID{}
	for uid, a := range c.book.endpoints {
		uids[a.record.Number] = uid
	}
	err = c.objects.eachSubflow(func(key *SubflowKey, record *SubflowRecord) {
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
	if c.objects == nil {
		return nil, nil
	}
	key := SubflowKey{Endpoint: number, LocalPort: bpf.Port(local.Port()), RemotePort: bpf.Port(remote.Port())}
	key.Local.Word, key.Remote.Word = bpf.Words(local.Addr()), bpf.Words(remote.Addr())
	var record SubflowRecord
	err := c.objects.maps["subflows"].Lookup(key, &record)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading a subflow: %w", err)
	}
	return &record, nil
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
	if c.objects == nil || c.book.endpoints[uid] == nil {
		return nil, nil
	}
	a := c.book.endpoints[uid]
	counters, err := c.objects.counters.at(int(a.word.Row()))
	if err != nil {
		return nil, err
	}
	counted := counters.read()
	for i := range a.rules {
		uses = append(uses, RuleUse{a.rules[i].Policy, a.rules[i].Name, counted[i]})
	}
	return uses, nil
}

// Map opens one of the pinned maps by its name; nil while nothing is loaded. The
// caller closes it.
func (c *Chains) Map(name string) (*ebpf.Map, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects == nil || c.objects.maps[name] == nil {
		return nil, nil
	}
	opened, err := c.objects.maps[name].Clone()
	if err != nil {
		return nil, fmt.Errorf("opening the map %s: %w", name, err)
	}
	return opened, nil
}

// Attached is what is known of an endpoint that has a chain.
type Attached struct {
	UID types.UID
	// Name is namespace/name of the pod; empty where an earlier agent knew it.
	Name string
	// Number is the endpoint's in the programs' keys.
	Number    uint32
	Interface int
	// Rules of its chain, as they are numbered in records.
	Rules []v1alpha1.PlanRule
}

// view is what can be told without waiting for Apply.
type view struct {
	endpoints map[uint32]Attached
	paths     [v1alpha1.MaxPaths]string
}

// publish shows others what there is now.
func (c *Chains) publish() {
	v := &view{endpoints: map[uint32]Attached{}, paths: c.book.paths}
	for uid, a := range c.book.endpoints {
		v.endpoints[a.record.Number] = Attached{
			UID: uid, Name: a.name, Number: a.record.Number, Interface: a.index(), Rules: a.rules,
		}
	}
	c.seen.Store(v)
}

// Endpoints lists the endpoints that have a chain, by their numbers.
func (c *Chains) Endpoints() (all []Attached) {
	for _, a := range c.seen.Load().endpoints {
		if len(a.Rules) > 0 {
			all = append(all, a)
		}
	}
	slices.SortFunc(all, func(a, b Attached) int { return int(a.Number) - int(b.Number) })
	return all
}

// Lifted is true while endpoints without rules wait for what their rules did to be
// undone; Apply is to be called soon again.
func (c *Chains) Lifted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.book == nil {
		return false
	}
	for _, a := range c.book.endpoints {
		if !a.lifted.IsZero() {
			return true
		}
	}
	return false
}

// Endpoint is namespace/name of the endpoint with this number.
func (c *Chains) Endpoint(number uint32) string { return c.seen.Load().endpoints[number].Name }

// Path is the name of the path in a slot; empty for none.
func (c *Chains) Path(slot uint8) string {
	if int(slot) >= v1alpha1.MaxPaths {
		return ""
	}
	return c.seen.Load().paths[slot]
}

// Rule is the policy and the name of a rule of the endpoint with this number.
func (c *Chains) Rule(number uint32, rule uint8) (policy, name string) {
	rules := c.seen.Load().endpoints[number].Rules
	if int(rule) >= len(rules) {
		return "", ""
	}
	return rules[rule].Policy, rules[rule].Name
}

// writePaths tells the programs which NIC belongs to which path.
func (c *Chains) writePaths(paths []Path) (map[string]uint8, error) {
	before := c.book.paths
	slotOf := c.book.assignPaths(paths)
	for slot, name := range c.book.paths {
		if name == before[slot] {
			continue
		}
		var value pathName
		copy(value[:len(value)-1], name)
		if err := c.objects.maps["endpoint_paths"].Put(uint32(slot), value); err != nil {
			return nil, fmt.Errorf("writing the name of path %q: %w", name, err)
		}
	}
	var interfaces endpoint.FromEndpointPaths
	for _, path := range paths {
		interfaces.Interface[slotOf[path.Name]] = uint32(path.Interface)
	}
	if err := c.objects.maps["path_interfaces"].Put(uint32(0), interfaces); err != nil {
		return nil, fmt.Errorf("writing the NICs of paths: %w", err)
	}
	return slotOf, nil
}

// eachSubflow reads the map in batches, because it may be large.
func (o *objects) eachSubflow(visit func(*SubflowKey, *SubflowRecord)) error {
	const batch = 1024
	keys, values := make([]SubflowKey, batch), make([]SubflowRecord, batch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := o.maps["subflows"].BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			visit(&keys[i], &values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading the subflows: %w", err)
		}
	}
}

// engaged are the endpoints, by number, with subflows on which rules have lasting
// effects.
func (o *objects) engaged() (map[uint32]bool, error) {
	numbers := map[uint32]bool{}
	err := o.eachSubflow(func(key *SubflowKey, record *SubflowRecord) {
		if record.Engaged != 0 && record.Ended == 0 && !wasNeverAnswered(record) {
			numbers[key.Endpoint] = true
		}
	})
	return numbers, err
}

// wasNeverAnswered is true for an attempt to begin a subflow: nothing was done to
// either end.
func wasNeverAnswered(record *SubflowRecord) bool {
	return record.Known&(endpoint.KnownSYN|endpoint.KnownSYNACK) == endpoint.KnownSYN
}

// forgetRecords removes the records of endpoints that are gone.
func (o *objects) forgetRecords(numbers map[uint32]bool) error {
	var subflows []SubflowKey
	err := o.eachSubflow(func(key *SubflowKey, _ *SubflowRecord) {
		if numbers[key.Endpoint] {
			subflows = append(subflows, *key)
		}
	})
	if err != nil {
		return err
	}
	for _, key := range subflows {
		if err := o.maps["subflows"].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forgetting a subflow: %w", err)
		}
	}
	return o.forgetConnections(numbers)
}

func (o *objects) forgetConnections(numbers map[uint32]bool) error {
	var key endpoint.FromEndpointMptcpConnectionKey
	var value endpoint.FromEndpointMptcpConnection
	var gone []endpoint.FromEndpointMptcpConnectionKey
	entries := o.maps["mptcp_connections"].Iterate()
	for entries.Next(&key, &value) {
		if numbers[key.Endpoint] {
			gone = append(gone, key)
		}
	}
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return fmt.Errorf("reading the connections: %w", err)
	}
	for _, key := range gone {
		if err := o.maps["mptcp_connections"].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("forgetting a connection: %w", err)
		}
	}
	return nil
}
