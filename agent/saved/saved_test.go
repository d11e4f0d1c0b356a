// SPDX-License-Identifier: Apache-2.0

package saved

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"braid.dev/braid/api/v1alpha1"
)

// stateOf is what an agent of node1 reads; peers come in any order.
func stateOf(generation int64, peers ...string) State {
	state := State{
		Node: corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "u1", ResourceVersion: "7", Annotations: map[string]string{"a": "b"}},
			Status: corev1.NodeStatus{
				Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
				Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}},
			},
		},
		Plan: &v1alpha1.MPTCPNodePlan{
			ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "p1", Generation: generation},
			Spec: v1alpha1.MPTCPNodePlanSpec{
				Paths:     []v1alpha1.PlanPath{{Name: "blue", Interfaces: []v1alpha1.InterfacePattern{"eth1"}}},
				Endpoints: []v1alpha1.PlanEndpoint{{UID: "e1", Namespace: "shop", Name: "web", Addresses: []string{"10.244.1.5"}}},
			},
			Status: v1alpha1.MPTCPNodePlanStatus{EndpointsTotal: 1},
		},
	}
	for _, peer := range peers {
		state.Nodes = append(state.Nodes, v1alpha1.MPTCPNode{
			ObjectMeta: metav1.ObjectMeta{Name: peer},
			Status: v1alpha1.MPTCPNodeStatus{
				AgentVersion: "1", Addresses: []string{"10.0.0.2"},
				Paths: []v1alpha1.NodePath{{Name: "blue", Addresses: []string{"10.1.0.2"}, State: v1alpha1.LinkUp, MedianRTTMicros: 120}},
			},
		})
	}
	return state
}

// write writes a state as a store does, and returns its directory.
func write(t *testing.T, state State) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "braid")
	require.NoError(t, NewStore(directory, "node1", testr.New(t), func() {}).save(trim(state)))
	return directory
}

func TestWhatIsSavedIsReadAgainWithoutWhatAStartDoesNotNeed(t *testing.T) {
	file, err := Read(write(t, stateOf(3, "node3", "node2")), "node1")
	require.NoError(t, err)
	wanted := State{
		Node: corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "u1"},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}},
		},
		Plan: stateOf(3).Plan,
	}
	wanted.Plan.Status = v1alpha1.MPTCPNodePlanStatus{}
	for _, name := range []string{"node2", "node3"} {
		wanted.Nodes = append(wanted.Nodes, v1alpha1.MPTCPNode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: v1alpha1.MPTCPNodeStatus{
				Addresses: []string{"10.0.0.2"},
				Paths:     []v1alpha1.NodePath{{Name: "blue", Addresses: []string{"10.1.0.2"}, State: v1alpha1.LinkUp}},
			},
		})
	}
	if difference := cmp.Diff(wanted, file.State); difference != "" {
		t.Error(difference)
	}
	if age := time.Since(file.Time); age < 0 || age > time.Minute {
		t.Errorf("it was written at %v", file.Time)
	}
}

func TestOnlyTheAgentCanReadWhatIsSaved(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "braid")
	require.NoError(t, os.Mkdir(directory, 0o755)) // as a kubelet makes it
	require.NoError(t, NewStore(directory, "node1", testr.New(t), func() {}).save(trim(stateOf(1))))
	for path, mode := range map[string]fs.FileMode{directory: fs.ModeDir | 0o700, filepath.Join(directory, FileName): 0o600} {
		status, err := os.Stat(path)
		require.NoError(t, err)
		if status.Mode() != mode {
			t.Errorf("%s has mode %v", path, status.Mode())
		}
	}
}

func TestWhatCannotBeTrustedIsNotRead(t *testing.T) {
	edit := func(change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(path, change(content), 0o600))
		}
	}
	replace := func(old, with string) func(*testing.T, string) {
		return edit(func(content []byte) []byte { return []byte(strings.Replace(string(content), old, with, 1)) })
	}
	cases := map[string]struct {
		spoil  func(t *testing.T, path string)
		reason string
	}{
		"another version":     {replace(magic+" 1 ", magic+" 2 "), "version"},
		"a changed byte":      {replace("10.244.1.5", "10.244.1.6"), "checksum"},
		"a lost end":          {edit(func(content []byte) []byte { return content[:len(content)-9] }), "checksum"},
		"nothing":             {edit(func([]byte) []byte { return nil }), "not a file of an agent"},
		"something else":      {edit(func([]byte) []byte { return []byte("{}\n{}") }), "not a file of an agent"},
		"no objects":          {edit(func([]byte) []byte { return append(header([]byte("[]")), "[]"...) }), "not as this agent writes it"},
		"another node":        {edit(func([]byte) []byte { return append(header([]byte(`{"nodeName":"node2"}`)), `{"nodeName":"node2"}`...) }), "node2"},
		"too much":            {func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, mostBytes+1)) }, "bytes"},
		"a file others write": {func(t *testing.T, path string) { require.NoError(t, os.Chmod(path, 0o622)) }, "alone may write"},
		"a file of others":    {func(t *testing.T, path string) { require.NoError(t, os.Chown(path, 1000, 1000)) }, "alone may write"},
		"a directory": {func(t *testing.T, path string) {
			require.NoError(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
		}, "alone may write"},
		"a link to another one": {func(t *testing.T, path string) {
			require.NoError(t, errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path)))
		}, "symbolic"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			directory := write(t, stateOf(1, "node2"))
			c.spoil(t, filepath.Join(directory, FileName))
			if file, err := Read(directory, "node1"); err == nil || !strings.Contains(err.Error(), c.reason) {
				t.Errorf("it was read: %v, %v", file, err)
			}
		})
	}
	if _, err := Read(t.TempDir(), "node1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("where there is none: %v", err)
	}
}

// inode tells whether a file was written anew.
func inode(t *testing.T, directory string) string {
	t.Helper()
	status, err := os.Stat(filepath.Join(directory, FileName))
	require.NoError(t, err)
	return fmt.Sprint(status.Sys())
}

func TestWhatDidNotChangeIsNotWrittenAgain(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "braid")
	store := NewStore(directory, "node1", testr.New(t), func() {})
	store.write(stateOf(1, "node2", "node3"))
	before := inode(t, directory)
	measured := stateOf(1, "node3", "node2")
	measured.Nodes[0].Status.Paths[0].MedianRTTMicros = 999
	measured.Node.ResourceVersion = "8"
	store.write(measured)
	if inode(t, directory) != before {
		t.Error("it was written again")
	}
	store.write(stateOf(2, "node2", "node3"))
	if inode(t, directory) == before {
		t.Error("a new plan was not written")
	}
}

func TestChangesThatComeTogetherAreWrittenOnceAndTheLastAtTheEnd(t *testing.T) {
	directory := filepath.Join(t.TempDir(), "braid")
	synctest.Test(t, func(t *testing.T) {
		store := NewStore(directory, "node1", testr.New(t), func() {})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- store.Run(ctx) }()
		saved := func() int64 {
			synctest.Wait()
			file, err := Read(directory, "node1")
			require.NoError(t, err)
			return file.Plan.Generation
		}
		for generation := range int64(50) {
			store.Keep(stateOf(generation + 1))
			if generation == 0 {
				synctest.Wait()
			}
		}
		if generation := saved(); generation != 1 {
			t.Errorf("at once the plan of generation %d is saved", generation)
		}
		time.Sleep(store.pause())
		if generation := saved(); generation != 50 {
			t.Errorf("after a while that of generation %d is", generation)
		}
		store.Keep(stateOf(51))
		cancel()
		require.NoError(t, <-done)
		if generation := saved(); generation != 51 {
			t.Errorf("in the end that of generation %d is", generation)
		}
	})
}

func TestNothingIsLeftWithoutAPlan(t *testing.T) {
	empty := stateOf(1)
	empty.Plan.Spec = v1alpha1.MPTCPNodePlanSpec{}
	for name, state := range map[string]State{"no plan": {Node: stateOf(1).Node}, "an empty plan": empty} {
		t.Run(name, func(t *testing.T) {
			directory := filepath.Join(t.TempDir(), "braid")
			store := NewStore(directory, "node1", testr.New(t), func() {})
			store.write(stateOf(1, "node2"))
			store.write(state)
			if _, err := os.Stat(directory); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the directory: %v", err)
			}
			store.write(stateOf(1, "node2"))
			_, err := Read(directory, "node1")
			require.NoError(t, err)
		})
	}
}

func TestWhatIsTooLargeIsNotSavedAndLeavesNothingOlder(t *testing.T) {
	directory := write(t, stateOf(1))
	large := stateOf(2)
	large.Plan.Spec.Endpoints[0].Name = strings.Repeat("x", mostBytes)
	require.ErrorContains(t, NewStore(directory, "node1", testr.New(t), func() {}).save(large), "bytes")
	if _, err := Read(directory, "node1"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading it: %v", err)
	}
}

func TestAFileThatWasNotFinishedIsReplaced(t *testing.T) {
	directory := write(t, stateOf(1))
	require.NoError(t, os.Symlink("/nowhere", filepath.Join(directory, FileName+".new")))
	require.NoError(t, NewStore(directory, "node1", testr.New(t), func() {}).save(trim(stateOf(2))))
	file, err := Read(directory, "node1")
	require.NoError(t, err)
	if file.Plan.Generation != 2 {
		t.Errorf("the plan has generation %d", file.Plan.Generation)
	}
	require.NoError(t, errors.Join(Remove(directory), Remove(directory)))
}

// A file that was damaged, or that somebody made up, is refused or read as a state,
// and what was read is written as it was.
func FuzzDecode(f *testing.F) {
	whole, err := encode(&File{NodeName: "node1", State: trim(stateOf(1, "node2"))})
	require.NoError(f, err)
	f.Add(whole, false)
	f.Add(whole[:len(whole)/2], false)
	f.Add([]byte(`{"nodeName":"node1","plan":{"spec":{"endpoints":[{}]}},"nodes":[{}]}`), true)
	f.Add([]byte(`{"node":null,"plan":null,"nodes":[null]}`), true)
	f.Fuzz(func(t *testing.T, data []byte, sign bool) {
		if sign { // else nothing gets past the checksum
			data = append(header(data), data...)
		}
		file, err := decode(data)
		if err != nil {
			return
		}
		again, err := encode(file)
		require.NoError(t, err)
		if _, err := decode(again); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
		trim(file.State)
	})
}

func TestAFullDiskIsToldUntilThereIsRoom(t *testing.T) {
	directory, told := t.TempDir(), 0
	require.NoError(t, syscall.Mount("tmpfs", directory, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(directory, syscall.MNT_DETACH)) })
	others := filepath.Join(directory, "others")
	require.ErrorIs(t, os.WriteFile(others, make([]byte, 1<<20), 0o600), syscall.ENOSPC)
	store := NewStore(directory, "node1", testr.New(t), func() { told++ })
	for range 2 {
		store.write(stateOf(1))
		require.Contains(t, store.Failure(), "no space left on device")
		require.Equal(t, 1, told, "what is still so is told once")
	}
	require.NoError(t, os.Remove(others))
	store.write(stateOf(1))
	require.Empty(t, store.Failure())
	require.Equal(t, 2, told)
}
