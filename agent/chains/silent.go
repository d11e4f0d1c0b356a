// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/api/v1alpha1"
)

// Silent is a subflow on which nothing passes that could tell its ends what the
// rules ask of it.
type Silent struct {
	// Chain tells it from the same subflow under other rules.
	Chain         uint64
	Local, Remote netip.AddrPort
	// LocalNext and RemoteNext are the sequence numbers that the ends send next.
	LocalNext, RemoteNext uint32
}

// silence is how long nothing has passed on a silent subflow.
const silence = 100 * time.Millisecond

// Silent lists the subflows of endpoints whose backup state is not what their rules
// ask for, or may not be, and that are silent.
func (c *Chains) Silent() (silent []Silent, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects == nil {
		return nil, nil
	}
	byNumber := map[uint32]*attached{}
	for _, a := range c.book.endpoints {
		byNumber[a.record.Number] = a
	}
	now := sinceBoot()
	err = c.objects.eachSubflow(func(key *SubflowKey, record *SubflowRecord) {
		a := byNumber[key.Endpoint]
		idle := int64(now-record.LastSeen) > int64(silence)
		if a == nil || !idle || record.Ended != 0 || !a.hasToTell(record) {
			return
		}
		silent = append(silent, silentOf(key, record))
	})
	return silent, err
}

// sinceBoot is the programs' clock, in nanoseconds.
func sinceBoot() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0 // cannot fail; nothing is silent then
	}
	return uint64(now.Nano())
}

func silentOf(key *SubflowKey, record *SubflowRecord) Silent {
	return Silent{
		Chain: record.Word,
		Local: endOf(key.Local.Word, key.LocalPort), Remote: endOf(key.Remote.Word, key.RemotePort),
		LocalNext: record.Traffic[0].Highest, RemoteNext: record.Traffic[1].Highest,
	}
}

func endOf(words [4]uint32, port uint16) netip.AddrPort {
	var address [16]byte
	for i, word := range words {
		binary.NativeEndian.PutUint32(address[4*i:], word)
	}
	return netip.AddrPortFrom(netip.AddrFrom16(address).Unmap(), binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, port)))
}

// hasToTell: the ends of a subflow were told a state that the rules do not ask for
// any more, or the rules have not seen it yet.
func (a *attached) hasToTell(record *SubflowRecord) bool {
	if record.Traffic[0].Begun == 0 || record.Traffic[1].Begun == 0 {
		return false // where its streams are is not known
	}
	state := &record.BackupState
	told := state.Told[0]|state.Told[1] != 0
	switch {
	case word(record.Word) != a.word:
		return told || a.setsBackups()
	case state.Wanted == 0:
		return told
	}
	return state.Told[0] != state.Wanted || state.Told[1] != state.Wanted
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
