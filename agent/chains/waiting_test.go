// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"net/netip"
	"testing"
	"time"

	"braid.dev/braid/api/v1alpha1"
	"braid.dev/braid/bpf"
	"braid.dev/braid/bpf/endpoint"
)

func TestAnAcknowledgementIsWaitedForUntilItsReceiverKnows(t *testing.T) {
	const old, current = word(1), word(2)
	const both = 3
	backup := true
	setsBackups := []v1alpha1.PlanRule{{Rule: v1alpha1.Rule{Actions: []v1alpha1.Action{
		{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: &backup}},
	}}}}
	for _, test := range []struct {
		name    string
		rules   []v1alpha1.PlanRule
		word    word // by which the subflow was classified
		wanted  uint8
		told    [2]uint8
		arrived uint8
		want    [2]bool
	}{
		{"told nothing under older rules", nil, old, 0, [2]uint8{}, 0, [2]bool{}},
		{"told under older rules", nil, old, endpoint.BackupOn, [2]uint8{endpoint.BackupOn, endpoint.BackupOn}, both, [2]bool{true, true}},
		{"new to rules that set backups", setsBackups, old, 0, [2]uint8{}, 0, [2]bool{true, true}},
		{"known to both ends", setsBackups, current, endpoint.BackupOn, [2]uint8{endpoint.BackupOn, endpoint.BackupOn}, both, [2]bool{}},
		{"told to one end", setsBackups, current, endpoint.BackupOn, [2]uint8{0, endpoint.BackupOn}, both, [2]bool{true, false}},
		{"told to both ends, and not arrived at one", setsBackups, current, endpoint.BackupOn, [2]uint8{endpoint.BackupOn, endpoint.BackupOn}, 1, [2]bool{false, true}},
		{"no backup any more", setsBackups, current, endpoint.BackupOff, [2]uint8{endpoint.BackupOn, endpoint.BackupOff}, both, [2]bool{true, false}},
		{"no longer asked for", nil, current, 0, [2]uint8{endpoint.BackupOn, 0}, both, [2]bool{true, false}},
		{"of no rule's concern", setsBackups, current, 0, [2]uint8{}, 0, [2]bool{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &attached{word: current, rules: test.rules}
			record := SubflowRecord{Word: uint64(test.word)}
			record.BackupState.Wanted, record.BackupState.Told, record.BackupState.Arrived = test.wanted, test.told, test.arrived
			if a.waitsFor(&record, 0) || a.waitsFor(&record, 1) {
				t.Error("it is waited for, though where the streams are is not known")
			}
			record.Traffic[0].Begun, record.Traffic[1].Begun = 1, 1
			for direction, want := range test.want {
				if got := a.waitsFor(&record, direction); got != want {
					t.Errorf("in direction %d it is %v", direction, got)
				}
			}
		})
	}
}

func TestThePeerOfABackupIsAskedWhereNothingPassed(t *testing.T) {
	const now = uint64(time.Hour)
	for _, test := range []struct {
		name   string
		wanted uint8
		since  time.Duration // it has been on its path
		passed time.Duration // ago
		begun  uint8
		want   bool
	}{
		{"for a while", endpoint.BackupOn, 7 * time.Second, 6 * time.Second, 1, true},
		{"for a moment", endpoint.BackupOn, 7 * time.Second, 4 * time.Second, 1, false},
		{"for as long as its path has been known", endpoint.BackupOn, time.Minute, 50 * time.Second, 1, true},
		{"since it was asked some time ago", endpoint.BackupOn, time.Minute, 20 * time.Second, 1, false},
		{"and no rule makes it a backup", 0, time.Minute, time.Minute, 1, false},
		{"and it is not known where its streams are", endpoint.BackupOn, time.Minute, time.Minute, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			record := SubflowRecord{LastSeen: now - uint64(test.passed)}
			record.BackupState.Wanted, record.BackupState.Lifted = test.wanted, now-uint64(test.since)
			record.Traffic[0].Begun, record.Traffic[1].Begun = test.begun, test.begun
			if got := isStale(&record, now); got != test.want {
				t.Errorf("it is asked: %v", got)
			}
		})
	}
}

func TestAnAcknowledgementIsWaitedForUntilHiddenAddressesAreGivenBack(t *testing.T) {
	const old, current = word(1), word(2)
	for _, test := range []struct {
		name                        string
		word                        word
		hidden, blocking, releasing uint8
		want                        bool
	}{
		{"none is hidden", old, 0, 0, 0, false},
		{"hidden by rules that may have gone", old, 1, 1, 0, true},
		{"hidden by a rule", current, 1, 1, 0, false},
		{"hidden by a rule, and given back by another", current, 1, 1, 1, true},
		{"hidden by a rule that has gone", current, 1, 0, 0, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, record := &attached{word: current}, SubflowRecord{Word: uint64(test.word)}
			record.Traffic[0].Begun, record.Traffic[1].Begun = 1, 1
			record.Addresses.Hidden, record.Addresses.Blocking, record.Addresses.Releasing = test.hidden, test.blocking, test.releasing
			for direction := range 2 {
				if got := a.waitsFor(&record, direction); got != test.want {
					t.Errorf("in direction %d it is %v", direction, got)
				}
			}
		})
	}
}

func TestAnWaitingEndIsThatOfTheKey(t *testing.T) {
	for _, end := range []string{"10.0.0.1:80", "[fd00::1]:65000"} {
		want := netip.MustParseAddrPort(end)
		record := SubflowRecord{}
		record.Traffic[1].Highest = 7
		got := endOf(endpoint.FromEndpointAddress{Word: bpf.Words(want.Addr())}, bpf.Port(want.Port()), &record, 1, true)
		if got != (WaitingEnd{want, 7, true}) {
			t.Errorf("%s is %+v", want, got)
		}
	}
}
