// SPDX-License-Identifier: Apache-2.0

package namespace_test

import (
	"errors"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/internal/lab/network"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	return file
}

func identify(t *testing.T, path string) namespace.Identity {
	t.Helper()
	identity, err := namespace.Identify(open(t, path))
	if err != nil {
		t.Fatal(err)
	}
	return identity
}

func interfaces(t *testing.T) int {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestDoRunsInsideAndComesBack(t *testing.T) {
	inside := network.NamespaceForTest(t)
	before := interfaces(t)
	stop := errors.New("stop")
	err := namespace.Do(open(t, inside.Path()), func() error {
		if interfaces(t) != 1 {
			t.Error("inside a new namespace there is more than lo")
		}
		return stop
	})
	if !errors.Is(err, stop) {
		t.Errorf("Do returned %v, not what the function returned", err)
	}
	if interfaces(t) != before {
		t.Error("the thread did not come back")
	}
}

func TestDoRefusesWhatIsNoNamespace(t *testing.T) {
	err := namespace.Do(open(t, os.DevNull), func() error { t.Error("the function ran"); return nil })
	if !errors.Is(err, unix.EINVAL) {
		t.Errorf("entering %s: %v, want EINVAL", os.DevNull, err)
	}
}

func TestIdentitiesDiffer(t *testing.T) {
	a, b := network.NamespaceForTest(t), network.NamespaceForTest(t)
	first, again, other := identify(t, a.Path()), identify(t, a.Path()), identify(t, b.Path())
	if first == other {
		t.Error("two namespaces have one identity")
	}
	if first != again {
		t.Error("a namespace has two identities")
	}
	if first.Cookie == 0 {
		t.Error("the cookie is 0")
	}
}
