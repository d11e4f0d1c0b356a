// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/schedule"
	"braid.dev/braid/agent/transport/numbers"
	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/transport"
)

// AgentRequests carries out what peers asked for and no program can do: see schedule.Scheduler.
type AgentRequests func(path string, requests []schedule.Request, ended []schedule.Ends) error

// byAgent are the requests that the node's agent carries out.
const byAgent = 1<<transport.RequestSchedule | 1<<transport.RequestDelayThreshold

// agentRequestKey are the ends of a socket in its network namespace.
type agentRequestKey = transport.TransportAskedRateKey

// agentRequests are the requests of one network namespace.
type agentRequests struct {
	alive []schedule.Request
	ended []schedule.Ends
	keys  []agentRequestKey // of those that ended
}

// agentRequestShare of the time may be spent on reading requests, one part in so many: peers may ask
// for very much.
const agentRequestShare = 20

// withoutAgent takes out of an exchange what needs subflows.manager Agent, where the pod has
// another, and says so.
func withoutAgent(endpoint *node.Endpoint, exchange *transport.TransportExchange) string {
	if exchange.Acceptance.Allowed&byAgent == 0 || endpoint.Subflows.Manager == v1alpha1.SubflowManagerAgent {
		return ""
	}
	exchange.Acceptance.Allowed &^= byAgent
	exchange.Revision = ^exchange.Revision | 1
	return "spec.transport.accept: schedules and minDelayThreshold need subflows.manager: Agent in the pod's policy, so no peer gets them"
}

// withoutBacklog takes delay thresholds out of an exchange where the kernel does not tell what
// waits, and nobody knows which streams are thin; and says so.
func withoutBacklog(tells bool, exchange *transport.TransportExchange) string {
	if tells || exchange.Acceptance.Allowed&(1<<transport.RequestDelayThreshold) == 0 {
		return ""
	}
	exchange.Acceptance.Allowed &^= 1 << transport.RequestDelayThreshold
	return "spec.transport.accept.minDelayThreshold: this node's kernel does not tell how much of a stream waits, as Linux 6.5 does, so no peer gets a threshold"
}

// lookAtAgentRequests carries out what peers ask for now, and ends what they asked for some time
// ago. It belongs to the lock.
func (p *Part) lookAtAgentRequests() error {
	begun := time.Now()
	if p.options.AgentRequests == nil || begun.Before(p.agentRequestsNext) {
		return nil
	}
	all, err := p.readAgentRequests()
	for cookie, one := range p.pods {
		of := all[cookie]
		if of == nil && (!p.requesting[cookie] || err != nil) {
			continue
		}
		if of == nil {
			of = &agentRequests{}
		}
		err = errors.Join(err, p.carryOut(cookie, one.path, of))
	}
	p.agentRequestsNext = time.Now().Add(agentRequestShare*time.Since(begun) - lookInterval)
	return err
}

// carryOut hands the requests of a namespace over, and forgets those that ended.
func (p *Part) carryOut(cookie uint64, path string, of *agentRequests) error {
	if err := p.options.AgentRequests(path, of.alive, of.ended); err != nil {
		return fmt.Errorf("carrying out what peers asked for: %w", err)
	}
	if len(of.alive) > 0 {
		p.requesting[cookie] = true
	} else {
		delete(p.requesting, cookie)
	}
	failed := entries.Delete(p.loaded.Value.AgentRequests, of.keys...)
	if err := p.loaded.Value.AgentRequestCounts.Update(cookie, uint32(len(of.alive)), ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		failed = errors.Join(failed, fmt.Errorf("counting what peers ask for: %w", err))
	}
	return failed
}

// readAgentRequests reads those of all namespaces.
func (p *Part) readAgentRequests() (map[uint64]*agentRequests, error) {
	now := bpf.Now()
	all := map[uint64]*agentRequests{}
	err := entries.Each(p.loaded.Value.AgentRequests, func(key *agentRequestKey, value *transport.TransportAgentRequest) {
		if all[key.Netns] == nil {
			all[key.Netns] = &agentRequests{}
		}
		age := now - time.Duration(value.Heard)
		all[key.Netns].add(key, value, age < transport.AgentRequestLapsesAfter*time.Second && p.carriesOut(key.Netns))
	})
	return all, err
}

// carriesOut: the pod still accepts what the agent does.
func (p *Part) carriesOut(cookie uint64) bool {
	one := p.pods[cookie]
	return one != nil && one.exchange.Acceptance.Allowed&byAgent != 0
}

func (w *agentRequests) add(key *agentRequestKey, value *transport.TransportAgentRequest, alive bool) {
	ends := schedule.Ends{
		Local:  netip.AddrPortFrom(bpf.Address(key.Local.Word), bpf.Port(key.LocalPort)),
		Remote: netip.AddrPortFrom(bpf.Address(key.Remote.Word), bpf.Port(key.RemotePort)),
	}
	if !alive {
		w.ended, w.keys = append(w.ended, ends), append(w.keys, *key)
		return
	}
	w.alive = append(w.alive, schedule.Request{
		Ends: ends, DelayThreshold: time.Duration(value.DelayThreshold) * time.Millisecond,
		EarliestCompletionFirst: value.Strategy == uint32(numbers.OfName(v1alpha1.StrategyEarliestCompletionFirst)),
	})
}

// letAgentRequests has the programs note what the agent has to do for a pod's peers, or not any more.
func (p *Part) letAgentRequests(cookie uint64, one *pod) error {
	counts := p.loaded.Value.AgentRequestCounts
	if one.exchange.Acceptance.Allowed&byAgent == 0 {
		return entries.Delete(counts, cookie)
	}
	err := counts.Update(cookie, uint32(0), ebpf.UpdateNoExist)
	if err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
		return fmt.Errorf("failed to have it noted what the pod's peers ask for: %w", err)
	}
	return nil
}

// endAgentRequests puts back what was done at the request of peers in a namespace whose pod accepts
// nothing any more.
func (p *Part) endAgentRequests(cookie uint64, path string) error {
	if p.options.AgentRequests == nil {
		return nil
	}
	all, err := p.readAgentRequests()
	of := all[cookie]
	if err != nil || of == nil && !p.requesting[cookie] {
		return err
	}
	if of == nil {
		of = &agentRequests{}
	}
	for i := range of.alive {
		of.ended = append(of.ended, of.alive[i].Ends)
	}
	of.alive = nil
	if err := p.carryOut(cookie, path, of); err != nil && !namespace.IsGone(err) {
		return err
	}
	delete(p.requesting, cookie)
	return entries.Forget(p.loaded.Value.AgentRequests, func(key agentRequestKey) bool { return key.Netns == cookie })
}

func (p *Part) endAgentRequestsIn(file *os.File) error {
	identity, err := namespace.Identify(file)
	if err != nil {
		return fmt.Errorf("ending what peers asked for in a network namespace: %w", err)
	}
	return p.endAgentRequests(identity.Cookie, file.Name())
}
