// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"braid.dev/braid/internal/testutil"
)

var testNetworks atomic.Int64

// TestName returns a name for a test's network that no other test has. It
// carries the test's process, so that what a killed test left is found and
// removed by the next one.
func TestName() string {
	return fmt.Sprintf("bt%dx%d", os.Getpid(), testNetworks.Add(1))
}

// ForTest builds a network for a test, under a name of its own, and removes it
// at the test's end; then nothing of it may be left.
func ForTest(t testutil.TB, spec Spec) *Network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("this test makes network namespaces: run it as root")
	}
	removeOrphans(t)
	spec.Name = TestName()
	network, err := Build(spec)
	if err != nil {
		t.Fatalf("%v", err)
	}
	identities := network.identities(t)
	t.Cleanup(func() {
		if err := network.Delete(); err != nil {
			t.Errorf("%v", err)
		}
		expectNothingLeft(t, spec.Name, identities)
	})
	return network
}

// NamespaceForTest makes one namespace for a test, and removes it at its end.
func NamespaceForTest(t testutil.TB) *Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatalf("this test makes network namespaces: run it as root")
	}
	removeOrphans(t)
	name := TestName()
	namespace, err := New(name + "-single")
	if err != nil {
		t.Fatalf("%v", err)
	}
	identities, err := IdentitiesOf([]string{namespace.Name})
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		namespace.closeHandle()
		if err := Teardown(name); err != nil {
			t.Errorf("%v", err)
		}
		expectNothingLeft(t, name, identities)
	})
	return namespace
}

func (n *Network) identities(t testutil.TB) Identities {
	t.Helper()
	namespaces, err := Namespaces(n.Spec.Name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	identities, err := IdentitiesOf(namespaces)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return identities
}

var testNamespace = regexp.MustCompile(`^(bt([0-9]+)x[0-9]+)-`)

// removeOrphans removes networks whose test's process is gone.
func removeOrphans(t testutil.TB) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(Directory, "bt*"))
	for _, file := range files {
		match := testNamespace.FindStringSubmatch(filepath.Base(file))
		if match == nil {
			continue
		}
		pid, _ := strconv.Atoi(match[2])
		if unix.Kill(pid, 0) == nil {
			continue
		}
		if err := Teardown(match[1]); err != nil {
			t.Errorf("removing what a killed test left: %v", err)
		}
	}
}

// expectNothingLeft looks for names, and for threads and processes inside.
// Threads that left a namespace by ending take a moment.
func expectNothingLeft(t testutil.TB, name string, identities Identities) {
	t.Helper()
	namespaces, err := Namespaces(name)
	if err != nil || len(namespaces) > 0 {
		t.Errorf("network %s left namespaces behind: %v %v", name, namespaces, err)
	}
	testutil.Retry(t, 5*time.Second, func() error {
		if users := identities.Users(); len(users) > 0 {
			return fmt.Errorf("network %s left users of its namespaces: %v", name, users)
		}
		return nil
	})
}
