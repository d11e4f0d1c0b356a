// SPDX-License-Identifier: Apache-2.0

package chains

import (
	"net/netip"
	"testing"

	"braid.dev/braid/api/v1alpha1"
)

// What record.BackupState says; as enum backup_wish.
const (
	backupOff = 1
	backupOn  = 2
)

func TestASubflowIsToBeToldWhatItsRulesNoLongerAskFor(t *testing.T) {
	const old, current = word(1), word(2)
	backup := true
	setsBackups := []v1alpha1.PlanRule{{Rule: v1alpha1.Rule{Actions: []v1alpha1.Action{
		{Type: v1alpha1.ActionSetBackup, SetBackup: &v1alpha1.SetBackup{Backup: &backup}},
	}}}}
	for _, test := range []struct {
		name   string
		rules  []v1alpha1.PlanRule
		word   word // by which it was classified
		wanted uint8
		told   [2]uint8
		want   bool
	}{
		{"one that was told nothing", nil, old, 0, [2]uint8{}, false},
		{"one that was told under older rules", nil, old, backupOn, [2]uint8{backupOn, backupOn}, true},
		{"one that is new to rules which set backups", setsBackups, old, 0, [2]uint8{}, true},
		{"one that both ends know of", setsBackups, current, backupOn, [2]uint8{backupOn, backupOn}, false},
		{"one that one end does not know of", setsBackups, current, backupOn, [2]uint8{0, backupOn}, true},
		{"one that is to be no backup any more", setsBackups, current, backupOff, [2]uint8{backupOn, backupOff}, true},
		{"one that no rule asks anything of any more", nil, current, 0, [2]uint8{backupOn, 0}, true},
		{"one that no rule concerns", setsBackups, current, 0, [2]uint8{}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := &attached{word: current, rules: test.rules}
			record := SubflowRecord{Word: uint64(test.word)}
			record.BackupState.Wanted, record.BackupState.Told = test.wanted, test.told
			if a.hasToTell(&record) {
				t.Error("it is, though no packet of its ends was seen")
			}
			record.Traffic[0].Begun, record.Traffic[1].Begun = 1, 1
			if got := a.hasToTell(&record); got != test.want {
				t.Errorf("it is %v", got)
			}
		})
	}
}

func TestTheEndsOfASilentSubflowAreThoseOfItsKey(t *testing.T) {
	for _, end := range []string{"10.0.0.1:80", "[fd00::1]:65000"} {
		want := netip.MustParseAddrPort(end)
		if got := endOf(toAddress(want.Addr().As16()).Word, toPort(want.Port())); got != want {
			t.Errorf("%s is %s", want, got)
		}
	}
}
