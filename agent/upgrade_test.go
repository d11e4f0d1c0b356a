// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"braid.dev/braid/agent/sockets"
	"braid.dev/braid/api/v1alpha1"
)

// fakeProgram is an upgrade program with the namespaces that it upgrades.
type fakeProgram struct {
	inodes map[uint64]bool
	closed bool
}

func (f *fakeProgram) Enable(inode uint64) error {
	f.inodes[inode] = true
	return nil
}

func (f *fakeProgram) Disable(inode uint64) error {
	delete(f.inodes, inode)
	return nil
}

func (f *fakeProgram) Enabled() ([]uint64, error) { return slices.Sorted(maps.Keys(f.inodes)), nil }

func (f *fakeProgram) Close() error {
	f.closed = true
	return nil
}

// fakeUpgrade finds a program with these namespaces, or the error.
func fakeUpgrade(t *testing.T, err error, inodes ...uint64) (*upgrade, *fakeProgram, *int) {
	program, opened := &fakeProgram{inodes: map[uint64]bool{}}, 0
	for _, inode := range inodes {
		program.inodes[inode] = true
	}
	u := newUpgrade(t.TempDir())
	u.open = func(string) (upgradeProgram, error) {
		opened++
		if err != nil {
			return nil, err
		}
		return program, nil
	}
	return u, program, &opened
}

func TestTheUpgradeIsLoadedWithTheFirstPodThatAsksForIt(t *testing.T) {
	u, program, opened := fakeUpgrade(t, nil)
	if err := u.keep(nil); err != nil || *opened != 0 || u.feature() != nil {
		t.Fatalf("without a pod it is opened %d times, feature %+v (%v)", *opened, u.feature(), err)
	}
	if err := u.keep(map[uint64]bool{1: true}); err != nil {
		t.Fatal(err)
	}
	state, err := u.enable(1)
	if err != nil || state != v1alpha1.SocketUpgradeActive || !program.inodes[1] || *opened != 1 {
		t.Errorf("it is %s for %v after %d times (%v)", state, program.inodes, *opened, err)
	}
	if feature := u.feature(); feature == nil || !feature.Supported {
		t.Errorf("the feature is %+v", feature)
	}
}

func TestWhatAnEarlierAgentUpgradedEndsUnlessItIsWanted(t *testing.T) {
	u, program, _ := fakeUpgrade(t, nil, 1, 2, 3)
	if err := u.keep(map[uint64]bool{2: true}); err != nil {
		t.Fatal(err)
	}
	if left := slices.Sorted(maps.Keys(program.inodes)); !slices.Equal(left, []uint64{2}) {
		t.Errorf("the upgrade goes on for %v", left)
	}
}

func TestTheUpgradeIsLetGoOfWithTheLastPod(t *testing.T) {
	u, program, opened := fakeUpgrade(t, nil)
	if _, err := u.enable(1); err != nil {
		t.Fatal(err)
	}
	if err := u.keep(nil); err != nil || !program.closed {
		t.Errorf("closed: %v (%v)", program.closed, err)
	}
	if state, err := u.enable(1); err != nil || state != v1alpha1.SocketUpgradeActive || *opened != 2 {
		t.Errorf("afterwards it is %s after %d times (%v)", state, *opened, err)
	}
}

func TestAKernelThatCannotIsAskedOnceAndSaysWhatToDo(t *testing.T) {
	u, _, opened := fakeUpgrade(t, fmt.Errorf("%w: too old", sockets.ErrUnsupported))
	for range 2 {
		if err := u.keep(map[uint64]bool{1: true}); err != nil {
			t.Fatal(err)
		}
		state, err := u.enable(1)
		if state != v1alpha1.SocketUpgradeUnsupported || err == nil || !strings.Contains(err.Error(), "docs/sockets.md") {
			t.Errorf("it is %s (%v)", state, err)
		}
	}
	if *opened != 1 {
		t.Errorf("the kernel was asked %d times", *opened)
	}
	if feature := u.feature(); feature == nil || feature.Supported || !strings.Contains(feature.Message, "too old") {
		t.Errorf("the feature is %+v", feature)
	}
}

func TestAFailureToLoadIsNotTakenForInability(t *testing.T) {
	u, program, opened := fakeUpgrade(t, errors.New("out of memory"))
	if state, err := u.enable(1); state != v1alpha1.SocketUpgradeFailed || err == nil {
		t.Errorf("it is %s (%v)", state, err)
	}
	u.open = func(string) (upgradeProgram, error) { return program, nil }
	if state, err := u.enable(1); state != v1alpha1.SocketUpgradeActive || err != nil || *opened != 1 {
		t.Errorf("the second time it is %s (%v)", state, err)
	}
}
