// SPDX-License-Identifier: Apache-2.0

package namespace_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"braid.dev/braid/agent/endpoints/namespace"
	"braid.dev/braid/internal/lab/network"
)

// processes is a directory as /proc, with processes in these namespaces.
func processes(t *testing.T, paths map[string]string) string {
	t.Helper()
	proc := t.TempDir()
	for process, path := range paths {
		directory := filepath.Join(proc, process, "ns")
		require.NoError(t, os.MkdirAll(directory, 0o755))
		require.NoError(t, os.Symlink(path, filepath.Join(directory, "net")))
	}
	return proc
}

func TestNamespacesAreSearchedByTheirCookiesAndVisitedOnce(t *testing.T) {
	a, b, other := network.NamespaceForTest(t), network.NamespaceForTest(t), network.NamespaceForTest(t)
	named := t.TempDir()
	require.NoError(t, os.Symlink(a.Path(), filepath.Join(named, "a")))
	proc := processes(t, map[string]string{"7": a.Path(), "8": b.Path(), "9": b.Path(), "10": other.Path(), "self": other.Path()})
	wanted := map[uint64]bool{identify(t, a.Path()).Cookie: true, identify(t, b.Path()).Cookie: true}
	visits := map[uint64]int{}
	refused, err := namespace.Search(wanted, []string{named, filepath.Join(named, "none")}, proc, func(file *os.File) error {
		identity, err := namespace.Identify(file)
		visits[identity.Inode]++
		return err
	})
	require.NoError(t, err)
	require.Zero(t, refused)
	require.Empty(t, wanted, "both were found")
	require.Equal(t, map[uint64]int{identify(t, a.Path()).Inode: 1, identify(t, b.Path()).Inode: 1}, visits)
}

// A process that ends meanwhile, and what is no namespace, are passed over.
func TestASearchPassesOverWhatIsGone(t *testing.T) {
	a := network.NamespaceForTest(t)
	proc := processes(t, map[string]string{"1": filepath.Join(t.TempDir(), "gone"), "2": os.DevNull, "3": a.Path()})
	cookie := identify(t, a.Path()).Cookie
	wanted, found := map[uint64]bool{cookie: true, 1: true}, 0
	refused, err := namespace.Search(wanted, nil, proc, func(*os.File) error { found++; return nil })
	require.NoError(t, err)
	require.Zero(t, refused)
	require.Equal(t, 1, found)
	require.Equal(t, map[uint64]bool{1: true}, wanted, "the one that is nowhere stays")
}

func TestASearchSaysWhatFailedAndWhatItMayNotLookAt(t *testing.T) {
	a, b := network.NamespaceForTest(t), network.NamespaceForTest(t)
	proc := processes(t, map[string]string{"1": a.Path(), "2": b.Path()})
	wanted := func() map[uint64]bool {
		return map[uint64]bool{identify(t, a.Path()).Cookie: true, identify(t, b.Path()).Cookie: true, 1: true}
	}
	broken := errors.New("broken")
	_, err := namespace.Search(wanted(), nil, proc, func(*os.File) error { return broken })
	require.ErrorIs(t, err, broken)
	refused, err := namespace.Search(wanted(), nil, proc, func(*os.File) error { return unix.EACCES })
	require.NoError(t, err)
	require.Equal(t, 2, refused)
}

func TestNothingIsLookedAtWhereNothingIsSearched(t *testing.T) {
	refused, err := namespace.Search(nil, []string{"/"}, "/proc", func(*os.File) error { return errors.New("visited") })
	require.NoError(t, err)
	require.Zero(t, refused)
}
