// SPDX-License-Identifier: Apache-2.0

package asking

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"braid.dev/braid/agent/entries"
	"braid.dev/braid/agent/node"
	"braid.dev/braid/agent/pace"
	"braid.dev/braid/agent/transport"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/guest"
)

// The programs' connections, and their keys.
type (
	connectionKey = guest.AskPeersAskedConnectionKey
	connection    = guest.AskPeersAskedConnection
)

const (
	lookInterval = time.Second
	// lookShare of the time may be spent on looking, one part in so many: a guest may open
	// very many connections.
	lookShare = 20
	// mostSubflows of a guest are looked at: what others have is asked of all alike.
	mostSubflows = 1024
	// fresh is how long after its last acknowledgement a connection is looked at.
	fresh = 3 * time.Second
)

// pause is when the agent looks again.
type pause struct{ until time.Time }

func (p *pause) is() bool { return time.Now().Before(p.until) }

func (p *pause) after(begun time.Time) {
	p.until = time.Now().Add(lookShare*time.Since(begun) - lookInterval)
}

// Run tells the program what to ask for on single subflows, once a second.
func (p *Part) Run(ctx context.Context) error {
	return node.Every(ctx, lookInterval, func() {
		if err := p.look(); err != nil {
			p.options.Log.Error(err, "failed to update what is asked of the peers of single subflows of VMs; earlier requests go on")
		}
	})
}

func (p *Part) look() (failed error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if !p.loaded.Is() || p.next.is() {
		return nil
	}
	begun := time.Now()
	for index, one := range p.wants {
		if len(one.rates) > 0 || one.rules {
			failed = errors.Join(failed, p.lookAt(index, one))
		}
	}
	p.next.after(begun)
	return failed
}

// known is where it is known what is asked on a single subflow; nil for nowhere.
type known struct {
	rates map[string]uint32
	flows transport.Flows
	rules Rules
}

// lookAt tells of the subflows of one guest.
func (p *Part) lookAt(index uint32, one want) error {
	connections, err := p.connectionsOf(index)
	if err != nil {
		return err
	}
	defer connections.Close()
	by, err := p.knownOf(one)
	if err != nil {
		return err
	}
	if by.flows != nil {
		defer by.flows.Close()
	}
	now, left := bpf.Now(), mostSubflows
	var failed error
	reading := entries.Each(connections, func(key *connectionKey, value *connection) {
		if left == 0 || now-time.Duration(value.RoundBegan) > fresh {
			return
		}
		left--
		failed = errors.Join(failed, p.tell(connections, by, *key, *value))
	})
	return errors.Join(reading, failed)
}

func (p *Part) connectionsOf(index uint32) (*ebpf.Map, error) {
	var id uint32
	if err := p.loaded.Value.AskedConnections.Lookup(index, &id); err != nil {
		return nil, fmt.Errorf("looking for the guest's connections: %w", err)
	}
	connections, err := ebpf.NewMapFromID(ebpf.MapID(id))
	if err != nil {
		return nil, fmt.Errorf("opening the guest's connections: %w", err)
	}
	return connections, nil
}

func (p *Part) knownOf(one want) (by known, err error) {
	if one.rules && p.options.Rules != nil {
		by.rules = p.options.Rules(one.owner)
	}
	if len(one.rates) > 0 && p.options.Flows != nil {
		by.rates = one.rates
		by.flows, err = p.options.Flows()
	}
	return by, err
}

// tell writes what is asked of the peer of one subflow. What the program counts meanwhile is
// lost, and the peer asked once more.
func (p *Part) tell(connections *ebpf.Map, by known, key connectionKey, value connection) error {
	asked, err := p.askedOf(by, &key)
	if err != nil || asked == (pace.Request{Rate: value.Rate, CongestionControl: value.CongestionControl, Schedule: value.Schedule}) {
		return err
	}
	value.Rate, value.CongestionControl, value.Schedule = asked.Rate, asked.CongestionControl, asked.Schedule
	value.Due = 0
	value.RoundBegan = 0 // all is asked with the next acknowledgement
	if err := connections.Update(&key, &value, ebpf.UpdateExist); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("writing what is asked of a subflow's peer: %w", err)
	}
	return nil
}

// askedOf is the least of the path's rate and that of rules, and what else rules ask for.
func (p *Part) askedOf(by known, key *connectionKey) (asked pace.Request, err error) {
	local, remote := bpf.AddrPort(key.Guest.Word, key.GuestPort), bpf.AddrPort(key.Peer.Word, key.PeerPort)
	if by.rules != nil {
		if asked, err = by.rules(local, remote); err != nil {
			return asked, err
		}
	}
	if by.flows == nil {
		return asked, nil
	}
	rate := uint16(by.rates[p.carriers.Of(by.flows, local, remote)])
	if rate != 0 && (asked.Rate == 0 || rate < asked.Rate) {
		asked.Rate = rate
	}
	return asked, nil
}
