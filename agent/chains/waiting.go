// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"net/netip"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
)

// WaitingSubflow is a subflow of which an end does not know, or may not, whether rules want
// it to be a backup, or which addresses were hidden from it that no rule hides any
// more. It is told in an acknowledgement of the other end.
type WaitingSubflow struct {
	// Chain tells it from the same subflow under other rules.
	Chain uint64
	// Local is the endpoint's end, Remote its peer's.
	Local, Remote WaitingEnd
	// Idle is true when nothing has passed for a while.
	Idle bool
}

// WaitingEnd is one end of such a subflow.
type WaitingEnd struct {
	netip.AddrPort
	// Next is the sequence number that it sends next.
	Next uint32
	// Wanted is true when an acknowledgement of this end is waited for.
	Wanted bool
}

const (
	// idle is how long nothing has passed on an idle subflow.
	idle = 100 * time.Millisecond
	// recheck is after how long the peer of an idle backup is asked for an acknowledgement at the
	// earliest: its flow may have gone back to a path of which no backups are wanted, where
	// nothing is sent on it.
	recheck = 5 * time.Second
)

// WaitingSubflows lists such subflows. More is true while there may be others later, though
// no chain changes.
func (c *Chains) WaitingSubflows() (waiting []WaitingSubflow, more bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.loaded.Is() {
		return nil, false, nil
	}
	byNumber := map[uint32]*attached{}
	for _, a := range c.loaded.Value.endpoints {
		byNumber[a.record.Number] = a
		more = more || a.setsBackups()
	}
	now := uint64(bpf.Now())
	err = c.loaded.Value.eachSubflow(func(key *SubflowKey, record *SubflowRecord) {
		a := byNumber[key.Endpoint]
		if a == nil || record.Ended != 0 {
			return
		}
		more = more || wasTold(record) || record.Addresses.Hidden != 0
		if local, remote := a.waitsFor(record, 0), a.waitsFor(record, 1) || isStale(record, now); local || remote {
			waiting = append(waiting, WaitingSubflow{
				Chain:  record.Word,
				Local:  endOf(key.Local, key.LocalPort, record, 0, local),
				Remote: endOf(key.Remote, key.RemotePort, record, 1, remote),
				Idle:   isIdle(record, now, idle),
			})
		}
	})
	return waiting, more, err
}

// endOf is the end that sends in a direction.
func endOf(address endpoint.FromEndpointAddress, port uint16, record *SubflowRecord, direction int, wanted bool) WaitingEnd {
	return WaitingEnd{
		AddrPort: bpf.AddrPort(address.Word, port),
		Next:     record.Traffic[direction].Highest, Wanted: wanted,
	}
}

// mostTellings is how often the programs tell an end at most.
const mostTellings = 16

// waitsFor: the programs need an acknowledgement in this direction, to tell its
// receiver what the rules want, or to ask them.
func (a *attached) waitsFor(record *SubflowRecord, direction int) bool {
	if !knowsStreams(record) {
		return false
	}
	isNew := word(record.Word) != a.word // to the rules
	addresses := &record.Addresses
	if addresses.Hidden != 0 && (isNew || addresses.Blocking == 0 || addresses.Releasing != 0) {
		return true
	}
	state := &record.BackupState
	switch {
	case isNew:
		return wasTold(record) || a.setsBackups()
	case state.Wanted == 0:
		return state.Told[direction] != 0
	case state.Told[direction] != state.Wanted:
		return true
	}
	return state.Arrived>>direction&1 == 0 && state.Times[direction] < mostTellings
}

// isStale: it is a backup for the path on which it was heard of last, which was long ago
// compared with how long that has been its path. So one that rests for good is asked ever more rarely.
func isStale(record *SubflowRecord, now uint64) bool {
	state := &record.BackupState
	since := time.Duration(now - state.Lifted)
	return state.Wanted == endpoint.BackupOn && isIdle(record, now, max(recheck, since/2)) && knowsStreams(record)
}

// knowsStreams: the sequence numbers of both ends, without which neither can be probed.
func knowsStreams(record *SubflowRecord) bool {
	return record.Traffic[0].Begun != 0 && record.Traffic[1].Begun != 0
}

func isIdle(record *SubflowRecord, now uint64, least time.Duration) bool {
	return int64(now-record.LastSeen) > int64(least)
}

func wasTold(record *SubflowRecord) bool {
	return record.BackupState.Told[0]|record.BackupState.Told[1] != 0
}

func (a *attached) setsBackups() bool {
	for i := range a.rules {
		for j := range a.rules[i].Actions {
			if a.rules[i].Actions[j].Type == v1alpha1.ActionSetBackup {
				return true
			}
		}
	}
	return false
}
