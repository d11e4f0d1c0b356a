// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// IterateSockets runs an iterator over the sockets of the namespace of this open file. It
// belongs to the namespace of the thread that opens it.
func IterateSockets(file *os.File, iterator *link.Iter) error {
	var sockets io.ReadCloser
	err := Do(file, func() (err error) {
		sockets, err = iterator.Open()
		return err
	})
	if err != nil {
		return fmt.Errorf("opening the iterator over sockets in %s: %w", file.Name(), err)
	}
	defer sockets.Close()
	if _, err := io.Copy(io.Discard, sockets); err != nil {
		return fmt.Errorf("iterating over the sockets in %s: %w", file.Name(), err)
	}
	return nil
}

// IterateSocketsAt runs it in the namespace that can be opened at a path. One that is gone
// has no sockets.
func IterateSocketsAt(path string, iterator *link.Iter) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("opening a network namespace: %w", err)
	}
	defer file.Close()
	return IterateSockets(file, iterator)
}

// Search visits the namespaces with these cookies, among all that have a file in one of
// the directories or a process in a proc file system. What it does not find is gone,
// unless some files, which it counts, may not be looked at. Cookies that were found are
// deleted.
func Search(cookies map[uint64]bool, directories []string, proc string, visit func(*os.File) error) (refused int, failed error) {
	if len(cookies) == 0 {
		return 0, nil // to list all processes takes milliseconds
	}
	seen := map[uint64]bool{}
	for _, path := range files(directories, proc) {
		if len(cookies) == 0 {
			break
		}
		err := visitIf(path, cookies, seen, visit)
		switch {
		case errors.Is(err, os.ErrPermission):
			refused++
		case err != nil && !IsGone(err):
			failed = errors.Join(failed, err)
		}
	}
	if len(cookies) == 0 {
		return 0, failed
	}
	return refused, failed
}

// visitIf visits the namespace at this path, once, if its cookie is among these.
func visitIf(path string, cookies, seen map[uint64]bool, visit func(*os.File) error) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening a network namespace: %w", err)
	}
	defer file.Close()
	var status unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &status); err != nil {
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	if seen[status.Ino] {
		return nil
	}
	seen[status.Ino] = true
	identity, err := Identify(file)
	if err != nil || !cookies[identity.Cookie] {
		return err
	}
	delete(cookies, identity.Cookie)
	return visit(file)
}

func files(directories []string, proc string) (paths []string) {
	for _, directory := range directories {
		found, _ := filepath.Glob(filepath.Join(directory, "*")) // the pattern is valid
		paths = append(paths, found...)
	}
	processes, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "ns", "net"))
	return append(paths, processes...)
}

// IsGone tells errors of files that vanished or never were namespaces.
func IsGone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
}
