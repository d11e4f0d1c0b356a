// SPDX-License-Identifier: Apache-2.0

package sockets

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"braid.dev/braid/agent/endpoints"
	"braid.dev/braid/agent/node"
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
func fakeUpgrade(t *testing.T, err error, inodes ...uint64) (*Upgrader, *fakeProgram, *int) {
	fake, opened := &fakeProgram{inodes: map[uint64]bool{}}, 0
	for _, inode := range inodes {
		fake.inodes[inode] = true
	}
	u := NewUpgrader(t.TempDir())
	u.open = func(string) (program, error) {
		opened++
		if err != nil {
			return nil, err
		}
		return fake, nil
	}
	return u, fake, &opened
}

// apply applies a model of endpoints that ask for the upgrade, in the namespaces
// with these numbers, and returns the statuses.
func apply(t *testing.T, u *Upgrader, inodes ...uint64) []v1alpha1.EndpointStatus {
	t.Helper()
	model := &node.Model{}
	for _, inode := range inodes {
		model.Endpoints = append(model.Endpoints, node.Endpoint{
			PlanEndpoint: &v1alpha1.PlanEndpoint{UID: types.UID(fmt.Sprint(inode)), UpgradeSockets: true},
			Found:        &endpoints.Endpoint{Inode: inode},
		})
	}
	report := u.Apply(t.Context(), model)
	if report.Err != nil {
		t.Fatal(report.Err)
	}
	return report.Statuses(model)
}

func TestTheUpgradeIsLoadedWithTheFirstPodThatAsksForIt(t *testing.T) {
	u, program, opened := fakeUpgrade(t, nil)
	apply(t, u)
	if *opened != 0 || u.Feature() != nil {
		t.Fatalf("without a pod it is opened %d times, feature %+v", *opened, u.Feature())
	}
	status := apply(t, u, 1)[0]
	if status.State != v1alpha1.EndpointProgrammed || status.SocketUpgrade != v1alpha1.SocketUpgradeActive || !program.inodes[1] || *opened != 1 {
		t.Errorf("the status is %+v for %v after %d times", status, program.inodes, *opened)
	}
	if feature := u.Feature(); feature == nil || !feature.Supported {
		t.Errorf("the feature is %+v", feature)
	}
}

func TestPodsThatDoNotAskOrAreNotFoundAreLeftAlone(t *testing.T) {
	u, program, _ := fakeUpgrade(t, nil)
	report := u.Apply(t.Context(), &node.Model{Endpoints: []node.Endpoint{
		{PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "silent"}, Found: &endpoints.Endpoint{Inode: 1}},
		{PlanEndpoint: &v1alpha1.PlanEndpoint{UID: "missing", UpgradeSockets: true}},
	}})
	if !report.Done() || len(report.Endpoints) > 0 || len(program.inodes) > 0 {
		t.Errorf("reported is %+v, and upgraded are %v", report, program.inodes)
	}
}

func TestWhatAnEarlierAgentUpgradedEndsUnlessItIsWanted(t *testing.T) {
	u, program, _ := fakeUpgrade(t, nil, 1, 2, 3)
	apply(t, u, 2)
	if left := slices.Sorted(maps.Keys(program.inodes)); !slices.Equal(left, []uint64{2}) {
		t.Errorf("the upgrade goes on for %v", left)
	}
}

func TestTheUpgradeIsLetGoOfWithTheLastPod(t *testing.T) {
	u, program, opened := fakeUpgrade(t, nil)
	apply(t, u, 1)
	apply(t, u)
	if !program.closed {
		t.Error("the program is still loaded")
	}
	if status := apply(t, u, 1)[0]; status.SocketUpgrade != v1alpha1.SocketUpgradeActive || *opened != 2 {
		t.Errorf("afterwards the status is %+v after %d times", status, *opened)
	}
}

func TestAKernelThatCannotIsAskedOnceAndSaysWhatToDo(t *testing.T) {
	u, _, opened := fakeUpgrade(t, fmt.Errorf("%w: too old", ErrUnsupported))
	for range 2 {
		status := apply(t, u, 1)[0]
		if status.SocketUpgrade != v1alpha1.SocketUpgradeUnsupported || status.State != v1alpha1.EndpointProgrammed ||
			!strings.Contains(status.Message, "docs/sockets.md") {
			t.Errorf("the status is %+v", status)
		}
	}
	if *opened != 1 {
		t.Errorf("the kernel was asked %d times", *opened)
	}
	if feature := u.Feature(); feature == nil || feature.Supported || !strings.Contains(feature.Message, "too old") {
		t.Errorf("the feature is %+v", feature)
	}
}

func TestAFailureToLoadIsNotTakenForInability(t *testing.T) {
	u, fake, _ := fakeUpgrade(t, errors.New("out of memory"))
	if status := apply(t, u, 1)[0]; status.SocketUpgrade != v1alpha1.SocketUpgradeFailed || status.Message != "out of memory" {
		t.Errorf("the status is %+v", status)
	}
	u.open = func(string) (program, error) { return fake, nil }
	if status := apply(t, u, 1)[0]; status.SocketUpgrade != v1alpha1.SocketUpgradeActive || status.Message != "" {
		t.Errorf("the second time it is %+v", status)
	}
}
