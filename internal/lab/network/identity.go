// SPDX-License-Identifier: Apache-2.0

package network

import (
	"fmt"
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
	threads, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/ns/net")
	for _, file := range append(names, threads...) {
		if i.has(file) {
			users = append(users, file)
		}
	}
	return users
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
