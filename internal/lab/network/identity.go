// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Identities are network namespaces, alive or not: the cookie of each, which the
// kernel gives no second time, by its inode, which it does.
type Identities map[uint64]uint64

// IdentitiesOf returns those of named namespaces.
func IdentitiesOf(names []string) (Identities, error) {
	identities := make(Identities, len(names))
	for _, name := range names {
		file := filepath.Join(Directory, name)
		cookie, err := cookieOf(file)
		if err != nil {
			return nil, err
		}
		identities[namespaceInode(file)] = cookie
	}
	return identities, nil
}

// Users are the names, threads and processes that still hold one of them.
func (i Identities) Users() (users []string) {
	names, _ := filepath.Glob(filepath.Join(Directory, "*"))
	for _, process := range numbered("/proc") {
		for _, thread := range numbered(filepath.Join(process, "task")) {
			names = append(names, filepath.Join(thread, "ns", "net"))
		}
	}
	for _, file := range names {
		if i.has(file) {
			users = append(users, file)
		}
	}
	return users
}

// numbered are the entries of a directory of /proc that are processes or threads; none of one that
// is gone. filepath.Glob would read whole directories for each name on the way.
func numbered(directory string) (paths []string) {
	opened, err := os.Open(directory)
	if err != nil {
		return nil
	}
	defer opened.Close()
	names, _ := opened.Readdirnames(-1)
	for _, name := range names {
		if name[0] >= '0' && name[0] <= '9' {
			paths = append(paths, filepath.Join(directory, name))
		}
	}
	return paths
}

// has asks for the cookie only where the inode is the same.
func (i Identities) has(file string) bool {
	expected, known := i[namespaceInode(file)]
	if !known {
		return false
	}
	cookie, err := cookieOf(file)
	return err == nil && cookie == expected
}

func cookieOf(file string) (cookie uint64, err error) {
	err = doAt(file, func() error {
		socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("opening a socket: %w", err)
		}
		defer unix.Close(socket)
		cookie, err = unix.GetsockoptUint64(socket, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading the cookie of network namespace %s: %w", file, err)
	}
	return cookie, nil
}
